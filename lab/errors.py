"""The one exception that ends a lab command."""


class LabError(Exception):
    """Something is missing or went wrong; `remedy` is what the reader can do about it."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  remedy: {self.remedy}" if self.remedy else self.what
