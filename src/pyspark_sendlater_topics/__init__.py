"""Lets Spark find `format("sendlater-topics")` by itself: it looks into every `pyspark_*` module.

An error here would break every data source of every session, so there is none: without the
module behind it the format is simply not found.
"""

import contextlib

with contextlib.suppress(Exception):
    from sendlater.spark.datasource.topics_format import TopicsSource as DefaultSource

    __all__ = ["DefaultSource"]
