"""The surface that speaks OpenAI's protocols: `/v1/models`, `/v1/chat/completions`, `/v1/responses`,
`/v1/conversations`.

Pure mapping, apart from the routes, `placement.py` and `references.py`: what a client sends becomes a durable chat,
and what the chat's journal tells becomes what the client expects.
"""
