"""The worker acts: it claims chats, drives each with a runner, and lets go of them in order."""
