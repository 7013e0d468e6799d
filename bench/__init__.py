"""`make bench`: what holdfast costs, as ratios against the raw limit measured in the same run.

The machine may be noisy: what is compared is interleaved, and medians are taken.
"""
