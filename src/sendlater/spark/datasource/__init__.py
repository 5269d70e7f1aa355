"""`format("sendlater")` and `format("sendlater-topics")` for users of Spark."""
