"""Why a request is refused."""


class Refusal(Exception):
    """The input cannot be accepted.

    `message` never repeats a value of the request, since any of them may be a secret; `field` names where it is.
    """

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.code = code
        self.message = message
        self.field = field
