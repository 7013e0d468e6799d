"""The JavaScript client, in Node and in a browser."""
