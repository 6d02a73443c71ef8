from helpers.plotted import plotted  # noqa: F401
