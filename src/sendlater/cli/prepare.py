"""The command that makes starts short."""

from sendlater.cli.connection import HERE, OK, Connection, app, err
from sendlater.errors import MissingTool


@app.command
def prepare(*, connection: Connection = HERE) -> int:
    """Download what a service needs here, and archive Java's classes: every start takes less.

    Without it the first start downloads, and each start loads the classes from Spark's jars. Java
    21 cannot use the archive.
    """
    from sendlater.local.installation import Installation
    from sendlater.service.rehearsal import archive_classes

    settings = connection.settings_here()
    java_home, jars = Installation.tools(settings)
    err.print(f"{len(jars)} jars for Kafka")
    try:
        archive = archive_classes(settings, java_home=java_home, jars=jars)
    except MissingTool as error:
        err.print(f"no archive of classes, so starts stay as long as they are: {error}")
    else:
        err.print(f"archive of classes: {archive}, {archive.stat().st_size // 1_000_000} MB")
    return OK
