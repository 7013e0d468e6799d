"""Tools: what an agent can do. A tool says how its calls may be replayed, how long they may take, who must agree."""
