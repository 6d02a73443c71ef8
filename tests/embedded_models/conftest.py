from helpers.unread import unread  # noqa: F401
