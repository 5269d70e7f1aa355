"""`format("sendlater")` and `format("sendlater-topics")`, as users of Spark see them."""
