"""What `compile` has put on a model of Keras 3, and what makes its variables: names that Keras does not promise."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_xla.private.names import KERAS_SEEN, Name, otherwise

BUILD = Name(
    "keras.Model",
    "_symbolic_build",
    "makes the variables of optimizer, losses and metrics from symbolic tensors",
    "TensorFlow makes the state in the trace of the first step, which takes longer",
    KERAS_SEEN,
    ("data_batch",),
)
LOSSES = Name(
    "keras.Model",
    "_compile_loss",
    "all that `compile` got as losses",
    "smaller batches are not filled up, and the losses of several outputs of a recurrent model are means over rows",
    KERAS_SEEN,
)
USERS_LOSSES = Name(
    "keras.CompileLoss",
    "_user_loss",
    "those losses as the user gave them",
    "smaller batches are not filled up",
    KERAS_SEEN,
)
METRICS = Name(
    "keras.Model",
    "_compile_metrics",
    "all that `compile` got as metrics",
    "smaller batches are not filled up",
    KERAS_SEEN,
)
LOSS_OPTIONS = Name(
    "keras.Loss",
    "_fn_kwargs",
    "the options of a loss, such as its axis, which change what a row's loss is",
    "smaller batches are not filled up",
    KERAS_SEEN,
)
METRIC_FUNCTION = Name(
    "keras.metrics.MeanMetricWrapper",
    "_fn",
    "the function that a metric takes the mean of: Keras' own or the user's",
    "smaller batches are not filled up",
    KERAS_SEEN,
)
METRIC_OPTIONS = Name(
    "keras.metrics.MeanMetricWrapper",
    "_fn_kwargs",
    "the options of that function, such as its axis",
    "smaller batches are not filled up",
    KERAS_SEEN,
)
LOSS_TRACKER = Name(
    "keras.Model",
    "_loss_tracker",
    "the metric that is shown as `loss`",
    "smaller batches are not filled up",
    KERAS_SEEN,
)


def symbolic_build(model: keras.Model, batch: Any, optimizer: bool = True) -> None:
    """Make the variables that the first batch of `fit` would make.

    Where a batch is refused, losses and metrics are as before: the step itself, or the next batch, makes them.

    Args:
        model: A compiled model.
        batch: A batch's structure of whatever has a shape and a dtype.
        optimizer: Whether those of the optimizer are made, too. `evaluate` makes none: which variables are trainable
            may change before `fit`. Nor are any made where none is trainable, as in plain Keras.
    """
    unbuilt = getattr(model, "optimizer", None)
    builds = optimizer and model.trainable_variables
    unbuilt = None if builds or getattr(unbuilt, "built", True) else unbuilt
    if unbuilt is not None:
        unbuilt.built = True
    losses, metrics = _compiled(model)
    unmade = [each for each in (losses, metrics) if not getattr(each, "built", True)]
    trackers = len(getattr(losses, "metrics", []))
    try:
        BUILD.of(model)(data_batch=batch)
    except Exception:
        for each in unmade:
            each.built = False
        if losses in unmade:
            del losses.metrics[trackers:]  # else those of several outputs would be there twice
        raise
    finally:
        if unbuilt is not None:
            unbuilt.built = False


def _compiled(model: keras.Model) -> list[Any]:
    """Losses and metrics, as far as they are there and have their names."""
    return [getattr(model, name.name, None) for name in (LOSSES, METRICS)]


def compiled_losses(model: keras.Model) -> Any:
    """What has `built`, and once that is true the `metrics` that track the losses of several outputs; or None."""
    return LOSSES.of(model)


@otherwise(())
def loss_trackers(model: keras.Model) -> Sequence[keras.metrics.Metric]:
    """The metrics that track the losses of several outputs; there are none before they are built."""
    return tuple(getattr(LOSSES.of(model), "metrics", ()))


def users_losses(model: keras.Model) -> Any:
    """The losses as the user gave them to `compile`, in their structure; None without."""
    losses = LOSSES.of(model)
    return None if losses is None else USERS_LOSSES.of(losses)


def compiled_metrics(model: keras.Model) -> Any:
    """What has `built`, and once that is true the user's `metrics`; or None."""
    return METRICS.of(model)


def loss_options(loss: Any) -> dict[str, Any]:
    """What a loss passes to its function besides targets and outputs."""
    return LOSS_OPTIONS.of(loss) if hasattr(loss, "fn") else {}


def metric_function(metric: keras.metrics.Metric) -> Callable | None:
    """The function that a metric takes the mean of."""
    return METRIC_FUNCTION.of(metric) if isinstance(metric, keras.metrics.MeanMetricWrapper) else None


def metric_options(metric: keras.metrics.Metric) -> dict[str, Any]:
    """What a metric passes to that function besides targets and outputs."""
    return METRIC_OPTIONS.of(metric) if isinstance(metric, keras.metrics.MeanMetricWrapper) else {}


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
    """The metric that is shown as `loss`."""
    return LOSS_TRACKER.of(model)
