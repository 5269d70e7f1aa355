"""What one call hears of its own records: how many were refused, and why the first was."""

from sendlater.errors import BadRequest, BrokerUnavailable


class Refused:
    """Bounded for any number of records. `add` may be called by any thread."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""
        self._for_good = True

    def add(self, error: Exception) -> None:
        """Note that a record was refused."""
        self.first = self.first or str(error)
        self.count += 1
        self._for_good &= isinstance(error, BadRequest)

    def tell(self) -> None:
        """Raises BrokerUnavailable if a record was refused; BadRequest if all that were would be
        refused again."""
        if self.count:
            kind = BadRequest if self._for_good else BrokerUnavailable
            raise kind(f"{self.count} records not acknowledged: {self.first}")
