"""The local model: llama.cpp's own server in a child process of ours, and the model in front of it."""
