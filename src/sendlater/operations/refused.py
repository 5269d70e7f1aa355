"""What one call hears of its own records: how many were refused, and why the first was."""

from sendlater.errors import BrokerUnavailable


class Refused:
    """Bounded for any number of records. `add` may be called by any thread."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def add(self, error: Exception) -> None:
        """Note that a record was refused."""
        self.first = self.first or str(error)
        self.count += 1

    def tell(self) -> None:
        """Raises BrokerUnavailable if a record was refused."""
        if self.count:
            raise BrokerUnavailable(f"{self.count} records not acknowledged: {self.first}")
