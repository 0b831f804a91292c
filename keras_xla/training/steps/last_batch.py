"""The last, smaller batch filled up with rows that weigh nothing, so that nothing compiles for its size.

That is done where XLA runs every batch: on JAX here, on TensorFlow with `jit_compile=True` in the graph (see
`backend/tensorflow/graphs/last_batch.py`). For models in which every row is on its own, the loss, the gradients and the
metrics are those of the smaller batch, to rounding: the rows that were added repeat the last one, with zero weight.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.signature import symbolic
from keras_xla.backend.steps import draws_by_row
from keras_xla.private.keras.compiled_model import (
    compiled_losses,
    compiled_metrics,
    loss_options,
    loss_tracker,
    loss_trackers,
    metric_function,
    metric_options,
    symbolic_build,
    users_losses,
)
from keras_xla.private.keras.layers import flat_layers, is_of_keras
from keras_xla.private.keras.logits import with_logits
from keras_xla.private.keras.masks import mask_if_known
from keras_xla.private.names import otherwise
from keras_xla.training.steps.rowwise import is_keras_own, rowwise_in_inference

# One number for each row (and position), of that row alone: losses, and metrics that are means.
_LOSSES = {
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_hinge",
    "cosine_similarity",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "sparse_categorical_crossentropy",
    "squared_hinge",
}
_ACCURACIES = {
    "accuracy",
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
    "top_k_categorical_accuracy",
}
_BY_SHAPE = ("crossentropy", "ce")  # Keras finds out which of its losses that is when it sees the outputs
_MEANS = {"sum_over_batch_size", "mean"}
_SUMS = {"sum", "mean_with_sample_weight"}
# Layers that mix rows, or whose random numbers for a row depend on how many rows there are.
_MIX: tuple[str, ...] = ("BatchNormalization", "ActivityRegularization", "Random", "Gaussian", "Alpha", "MixUp")
_MIX += ("CutMix", "AugMix", "RandAugment", "AutoContrast", "Masking")
_COUNT_ROWS = ("R2Score", "PearsonCorrelation", "ConcordanceCorrelation")  # metrics that do so whatever the weights
_IOU = "IoU"  # metrics whose names end so want a weight for each number of a row


@otherwise(False)
def fills(model: keras.Model, kind: str) -> bool:
    """Whether added rows leave the results of a model's train or test steps as they are.

    True for models of Keras' own layers, losses and metrics that treat every row alone, with Keras' own step.
    """
    loss_tracker(model)  # which the step needs
    return _rows_alone(model, kind) and _metrics_count(model)


def _rows_alone(model: keras.Model, kind: str) -> bool:
    kept = (f"{kind}_step", "compute_loss", "compute_metrics")
    own = all(getattr(type(model), name) is getattr(keras.Model, name) for name in kept)
    own &= not {*kept[1:]} & vars(model).keys()  # nor on the instance
    if not own or not rowwise_in_inference(model) or not _scale(model):
        return False
    # A loss of outputs with one axis takes the rows for classes; one of outputs with a mask counts what is not masked.
    layers = flat_layers(model)
    masked = any(mask_if_known(x) is not None for each in layers for x in getattr(each, "outputs", None) or ())
    return not masked and all(map(_alone, layers)) and all(len(x.shape) > 1 for x in model.outputs)


def _alone(layer: keras.layers.Layer) -> bool:
    kind, draws = type(layer), any(getattr(layer, name, 0) for name in ("rate", "dropout", "recurrent_dropout"))
    return (
        not kind.__name__.startswith(_MIX)
        and (not draws or draws_by_row())
        and getattr(layer, "activity_regularizer", None) is None
        and not getattr(layer, "mask_zero", False)
    )


def _scale(model: keras.Model) -> str:
    """`"mean"` or `"sum"` over the rows, for all losses; empty where that is not known."""
    losses = keras.tree.flatten(users_losses(model))
    kinds = set()
    for loss in losses:
        loss = keras.losses.get(loss) if isinstance(loss, str) and loss.lower() not in _BY_SHAPE else loss
        fn, reduction = getattr(loss, "fn", loss), getattr(loss, "reduction", "sum_over_batch_size")
        name = getattr(fn, "__name__", "")
        known = name in _LOSSES and getattr(keras.losses, name, None) is fn
        if isinstance(loss, keras.losses.Loss):  # whose function is not all of it, where a user has made it
            known &= is_keras_own(loss, keras.losses) and "call" not in vars(loss)
        how = loss_options(loss) if known else {}
        # A mean over what is not ignored is one over the added rows, too.
        known &= how.get("axis", -1) == -1 and how.get("ignore_class") is None
        kinds.add("mean" if known and reduction in _MEANS else "sum" if known and reduction in _SUMS else "")
    return kinds.pop() if len(kinds) == 1 else ""


def _metrics_count(model: keras.Model) -> bool:
    compiled = compiled_metrics(model)
    if compiled is None:
        return True
    if not compiled.built:
        return False
    return all(
        is_keras_own(metric, keras.metrics)
        and "update_state" not in vars(metric)  # the user's own
        and not type(metric).__name__.startswith(_COUNT_ROWS)
        and not type(metric).__name__.endswith(_IOU)
        and _is_a_mean_of_rows(metric)
        for metric in compiled.metrics
    )


def _is_a_mean_of_rows(metric: keras.metrics.Metric) -> bool:
    """Whether a metric gives each row a number; true for those that are not the means of a function."""
    function = metric_function(metric)
    if function is None:
        return True
    known = getattr(function, "__name__", "") in _LOSSES | _ACCURACIES  # no loss as an object: it is a scalar
    return known and is_of_keras(function) and metric_options(metric).get("axis", -1) == -1


def _metrics_take(model: keras.Model, batch: Any) -> bool:
    """Whether a weight for each row is what all metrics expect: of the others, Keras' means alone take any targets."""
    _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    ranks = [len(leaf.shape) for leaf in keras.tree.flatten(y) if leaf is not None]
    if max(ranks, default=0) <= 2:
        return True
    return all(isinstance(metric, keras.metrics.Mean) for metric in getattr(compiled_metrics(model), "metrics", []))


def _targets_fit(model: keras.Model, batch: Any) -> bool:
    """Whether targets stand where their outputs do, so that Keras finds the weight of each loss there, too."""
    _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    if not keras.tree.is_nested(y):
        return True
    try:
        keras.tree.assert_same_paths(model.output, y)
    except (ValueError, AttributeError):  # a Sequential model has no `output`: it has one, and it is not nested
        return False
    return True


class Fill:
    """Fills smaller batches up to the size of those before; those that cannot be are left as they are.

    Those before are of the same shapes but for the number of rows: short rows in large batches, long ones in small.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._sizes: dict[tuple, int] = {}  # rows, by the other axes of all leaves

    def __call__(self, batch: Any) -> Any:
        """The batch as a `FilledBatch`."""
        leaves = [x for x in keras.tree.flatten(batch) if x is not None]
        if not all(hasattr(x, "__array__") for x in leaves):  # sparse ones of JAX have none
            return batch
        sizes = {np.shape(x)[:1] for x in leaves}
        if len(sizes) != 1 or () in sizes or (0,) in sizes:
            return batch
        if not _targets_fit(self._model, batch) or not _metrics_take(self._model, batch):
            return batch
        (rows,) = sizes.pop()
        others = tuple(np.shape(x)[1:] for x in leaves)
        size = self._sizes[others] = max(self._sizes.get(others, 0), rows)
        if rows < size:
            batch = filled_up(batch, size)
        return FilledBatch(batch, np.int32(rows))


def filled_up(arrays: Any, rows: int) -> Any:
    """Arrays with their last row repeated until there are so many; Nones stay Nones."""

    def fill(x):
        return None if x is None else np.concatenate([x, np.repeat(np.asarray(x)[-1:], rows - len(x), axis=0)])

    return keras.tree.map_structure(fill, arrays)


def filling(model: keras.Model, kind: str) -> Callable[[], Fill | None]:
    """Have the model's train or test step on JAX take filled batches, too, before a function is made of it.

    The step is replaced on the instance. What is returned is to be asked as a pass over data begins: it gives what
    fills its batches, or None where that changes results.
    """
    if f"{kind}_step" in vars(model) and not _is_ours(vars(model)[f"{kind}_step"]):
        return lambda: None
    setattr(model, f"{kind}_step", _step(model, kind))
    wanted: list[bool] = []

    def fill() -> Fill | None:
        if not wanted:  # by now the metrics are there
            wanted.append(fills(model, kind))
        return Fill(model) if wanted[0] and keras.distribution.distribution() is None else None

    return fill


def filled_step(model: keras.Model, kind: str) -> Callable:
    """Answers a runner on TensorFlow which step to trace for batches: one of filled batches where `fills` says so."""

    @otherwise(None)
    def answer(spec):
        built = all(layer.built for layer in flat_layers(model))  # else its outputs are not known
        if f"{kind}_step" in vars(model) or not built or not _rows_alone(model, kind) or not _targets_fit(model, spec):
            return None
        if not all(each is None or each.built for each in (compiled_losses(model), compiled_metrics(model))):
            # Their metrics must be there before the step is traced, as they are on JAX.
            try:
                tensors = keras.tree.map_structure(lambda x: None if x is None else symbolic(x), spec)
                symbolic_build(model, tensors, optimizer=kind == "train")
            except Exception:  # tracing the usual step tells what is wrong, in Keras' words
                return None
        return _step(model, kind) if fills(model, kind) and _metrics_take(model, spec) else None

    return answer


def stop_filling(model: keras.Model) -> None:
    """Give the model its own steps back."""
    for kind in ("train", "test"):
        if _is_ours(vars(model).get(f"{kind}_step")):
            delattr(model, f"{kind}_step")


def _step(model: keras.Model, kind: str) -> Callable:
    step = getattr(type(model), f"{kind}_step")

    def run(*arguments, **named):
        if named:  # a loop of the user's own
            return step(model, *arguments, **named)
        *state, batch = arguments
        if not isinstance(batch, FilledBatch):
            return step(model, *arguments)
        with _weighed(model, batch):
            return step(model, *state, batch.batch)

    run.__name__ = run.__qualname__ = step.__name__  # by which it is compiled
    vars(run)["fills"] = run
    return run


def _is_ours(step: Any) -> bool:
    """Whether `_step` made it: a wrapper of the user's own may have a copy of its attributes."""
    return step is not None and getattr(step, "fills", None) is step


@contextlib.contextmanager
def _weighed(model: keras.Model, filled: FilledBatch):
    """While a step is traced, losses and metrics get weights; sums and means are those over the rows that count."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(filled.batch)
    size = keras.ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
    real = keras.ops.arange(size) < filled.rows  # [rows of the batch]
    counts = keras.ops.cast(real, keras.config.floatx())
    rows = keras.ops.cast(filled.rows, keras.config.floatx())
    factor = keras.ops.cast(size, rows.dtype) / rows if _scale(model) == "mean" else 1.0

    def as_rank_of(of, x):
        return keras.ops.reshape(of, (-1, *[1] * (len(x.shape) - 1)))

    def tamed(targets, outputs):
        """With zeros and ones in the rows that were added: what is infinite there would be NaN at zero weight."""

        def only_real(other):
            return lambda x: None if x is None else keras.ops.where(as_rank_of(real, x), x, other(x))

        zeros, ones = only_real(keras.ops.zeros_like), only_real(keras.ops.ones_like)
        outputs = keras.tree.map_structure(lambda x: with_logits(x, ones), outputs)
        return keras.tree.map_structure(zeros, targets), outputs

    def weights(given, of=counts):
        return of if given is None else keras.ops.cast(given, of.dtype) * as_rank_of(of, given)

    def for_loss(given, labels, predicted):
        of = counts * factor
        if given is None and predicted is not None:  # one for each number that the loss gives
            ranks = len(np.shape(labels)), len(predicted.shape)
            if 1 < ranks[0] == ranks[1] - 1 and predicted.shape[-1] == 1:  # Keras drops that axis
                predicted = keras.ops.squeeze(predicted, axis=-1)
            return keras.ops.broadcast_to(as_rank_of(of, predicted[..., 0]), keras.ops.shape(predicted)[:-1])
        return weights(given, of)

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        given = sample_weight
        if given is None and keras.tree.is_nested(y):
            given = keras.tree.map_structure(lambda _: None, y)
        leaves, labels, predicted = map(keras.tree.flatten, (given, y, y_pred))
        if not len(leaves) == len(labels) == len(predicted):  # Keras says what it thinks of that
            labels = predicted = [None] * len(leaves)
        made = keras.tree.pack_sequence_as(given, list(map(for_loss, leaves, labels, predicted)))
        return type(model).compute_loss(model, x, *tamed(y, y_pred), made, training=training)

    on_tensorflow = keras.backend.backend() == "tensorflow"

    def of_rows(tracker):
        update = tracker.update_state

        def update_state(values, sample_weight=None):
            # On TensorFlow Keras counts batches, not rows, for the loss of each of several outputs: see `shown_losses`.
            batches = sample_weight is None or (isinstance(sample_weight, int) and on_tensorflow)
            return update(values, sample_weight=None if batches else rows)

        return update_state

    def weighted(metric):
        update = metric.update_state
        return lambda y_true, y_pred, sample_weight=None: update(
            *tamed(y_true, y_pred), sample_weight=weights(sample_weight)
        )

    trackers = [loss_tracker(model), *loss_trackers(model)]
    metrics = getattr(compiled_metrics(model), "metrics", [])
    changed = [(tracker, of_rows(tracker)) for tracker in trackers] + [(each, weighted(each)) for each in metrics]
    model.compute_loss = compute_loss
    changed = list({id(each): (each, update) for each, update in changed}.values())  # one may be there twice
    for each, update in changed:
        each.update_state = update
    try:
        yield
    finally:
        del model.compute_loss
        for each, _ in changed:
            del each.update_state
