"""REST and the page: a process of its own that asks the store and writes to the inbox."""
