"""HTTP to providers: sockets, one transport with deadlines and limits, server-sent events, a wire on top."""
