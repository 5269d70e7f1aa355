"""What the Python processes of a service's local Spark need, imported once for all of them."""

import pandas  # noqa: F401  # PyArrow imports it with the first array of each process

import sendlater.spark.arrow_rows
import sendlater.spark.buckets.hold_source
import sendlater.spark.buckets.hold_task
import sendlater.spark.datasource.format
import sendlater.spark.datasource.topics_format
import sendlater.spark.delivery.claim_task
import sendlater.spark.delivery.due_source
import sendlater.spark.delivery.refusal
import sendlater.spark.delivery.warm_rows
import sendlater.spark.intake.inbox_rows
import sendlater.spark.intake.inbox_source
import sendlater.spark.intake.inbox_task
import sendlater.spark.intake.park_sink
import sendlater.spark.intake.park_task  # noqa: F401
