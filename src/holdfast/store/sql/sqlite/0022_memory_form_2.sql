-- oldest-code: 10
-- Of form 2, the last character of a run without spaces is a term by itself, too. Older code finds these as well. It
-- writes form 0 or 1, and looks for form 0 by `memory_passages_old`, which therefore stays.
CREATE INDEX memory_passages_old_2 ON memory_passages (id) WHERE form < 2;
