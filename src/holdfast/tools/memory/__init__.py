"""The tool by which a model reads and changes what outlives its chat."""
