"""Pages in a real Chromium: the tools `browse_…`, the browsers behind them, the proxy for all of their traffic."""
