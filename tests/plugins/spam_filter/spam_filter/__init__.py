"""A plugin of Regard: a task, a model family with its own position scheme, and a metric. Nothing imports torch here."""

from types import ModuleType


def register(regard: ModuleType) -> None:
    """Add the parts by import strings; called once, when Regard looks for plugins."""
    regard.register("task", "spam", "spam_filter.task:TASK")
    regard.register("family", "log-encoder", "spam_filter.family:FAMILY")
    regard.register("positions", "log-distance", "spam_filter.family:LogDistance")
    regard.register("metric", "false-alarms", "spam_filter.metric:FALSE_ALARMS")
