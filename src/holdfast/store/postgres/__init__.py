"""The PostgreSQL store: many machines, one database. Chosen by a `postgresql://` URL."""
