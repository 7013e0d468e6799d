"""Pictures, audio and video: the tools `look` and `transcribe`, and the programs that take them apart."""
