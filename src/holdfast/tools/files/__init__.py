"""Files below one folder: the tools, the folder that nothing gets out of, listing and searching."""
