"""The HTTP surface: routes over `app`, event streams, who gets in. No SQL, no rules of chats."""
