"""Tool servers that speak the Model Context Protocol: the connection, the session below it, their tools as ours."""
