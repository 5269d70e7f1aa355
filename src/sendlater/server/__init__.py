"""REST and the page: a separate process that reads the store and writes to the inbox."""
