"""The programs that send and receive, each in the language of its system."""
