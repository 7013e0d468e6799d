"""The command line. Commands call `app`; no SQL, no rules of chats."""
