"""`keras_xla.jit(model.generate)` for TensorFlow models of transformers 4: prompts padded to buckets inside."""

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.backend.steps import with_autograph
from keras_xla.functions.argument_buckets import ArgumentBuckets
from keras_xla.private.transformers import generation_config
from keras_xla.troubleshooting import explained, warn

_LENGTHS = tuple(2**k for k in range(5, 18))
_IDS, _MASK = "input_ids", "attention_mask"
_STAY = ("eos_token_id", "pad_token_id")  # of the model, where a call says None


def adapt(fn: Callable, buckets: Mapping | None, make_compiled: Callable) -> "CompiledGenerate | None":
    """What `jit` makes of `fn`; None unless it is the bound `generate` of a TensorFlow model of transformers."""
    modules = {kind.__name__: kind.__module__ for kind in type(getattr(fn, "__self__", None)).__mro__}
    if not modules.get("TFGenerationMixin", "").startswith("transformers.") or fn.__name__ != "generate":
        return None
    if backend.name != "tensorflow":
        raise ValueError(
            f"keras_xla.jit received the `generate` of a TensorFlow model, and Keras runs on {backend.name}; "
            "set the environment variable KERAS_BACKEND=tensorflow before Keras is imported."
        )
    return CompiledGenerate(fn, buckets, make_compiled)


@explained
class CompiledGenerate:
    """`generate` of a TensorFlow model of transformers 4, with one XLA executable for each bucket of the prompts.

    `keras_xla.jit(model.generate)` makes it. Call it as `model.generate`, with prompts of any length and integer dtype:

    - `input_ids (batch, length)` are padded to the next bucket, on the left for a decoder and on the right for
      an encoder, and an `attention_mask` hides the padding. The prompt comes back as it was passed: a decoder
      returns `(batch, length + max_new_tokens)`, without the padding to the bucket.
    - Without an `attention_mask`, `pad_token_id` in a prompt is padding, unless it is an `eos_token_id` too (as
      in `model.generate`). A decoder's prompts may be padded on either side.
    - Options (`num_beams`, `temperature`, `max_new_tokens`, ...) are part of an executable here: another value compiles
      again. `seed` is a tensor and changes freely.
    - As always under XLA, rows that ended are filled with `pad_token_id` up to `max_new_tokens`.
    - A decoder's `max_length` and `min_length` count the prompt, so another prompt length is another option:
      pass `max_new_tokens`.

    Args:
        generate: The bound method `generate` of the model.
        buckets: `{"input_ids": {1: sizes}}` for the length of the prompts, with axis 0 for the batch. By default the
            lengths are powers of two from 32 to 131,072, and the batch stays as it is.
        make_compiled: Makes a `CompiledFunction` from a function and a name.
    """

    def __init__(self, generate: Any, buckets: Mapping | None, make_compiled: Callable):
        self._generate, self._model = generate, generate.__self__
        self._decoder_only = not self._model.config.is_encoder_decoder
        self.__name__, self.__doc__ = f"{self._model.name}.generate", generate.__doc__
        self._buckets = ArgumentBuckets({_IDS: {1: _LENGTHS}} if buckets is None else buckets, [_IDS], self.__name__)
        self._compiled = make_compiled(self._run, self.__name__)
        self._warned = False

    @property
    def trace_count(self) -> int:
        """How many XLA executables have been compiled so far (int)."""
        return self._compiled.trace_count

    def __repr__(self):
        return f"<keras_xla.jit {self.__name__}, {self.trace_count} executables>"

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        """Generate; see the class, and `model.generate` of the model.

        Args:
            inputs: `input_ids (batch, length)` of an integer dtype; or for speech `input_features`. They may also come
                by name.
            **options: Whatever `model.generate` takes.

        Returns:
            What `model.generate` returns: as a rule `(batch * num_return_sequences, tokens)` int32.

        Raises:
            ValueError: For prompts of a wrong shape or dtype, that are empty, hold ids outside of the
                vocabulary, or leave no positions for the new tokens.
            RecompileError: This would compile again, and `on_recompile` is `"raise"`.
        """
        if any(map(backend.is_traced, keras.tree.flatten((inputs, options)))):
            return self._generate(inputs, **options)
        if inputs is not None:
            name = self._model.main_input_name
            if options.get(name) is not None:
                raise ValueError(f"{self.__name__} received `inputs` and `{name}`, which are the same; pass one.")
            options[name] = inputs
        config, options = self._effective(options)
        tensors = {n: _array(x) for n, x in options.items() if n in (_IDS, _MASK, "seed") or _is_array(x)}
        statics = {n: _Same(x) for n, x in options.items() if n not in tensors}
        weights = _Weights(self._model.weights)
        if _IDS not in tensors:  # speech, or a start from nothing: there is no length to pad
            return self._compiled(_by_name(tensors), _by_name(statics), _settings(config), weights)
        prompt = self._prompt(tensors, config)
        padded = _by_name(self._padded(tensors, prompt))
        outputs = self._compiled(padded, _by_name(statics), _settings(config), weights)
        return self._as_given(outputs, prompt, config)

    def _run(self, inputs: dict, options: dict, settings: dict, weights: "_Weights") -> Any:
        """What is compiled: `generate`, with `settings` instead of the model's own, and the `weights` that it has."""
        config = type(self._model.generation_config)(**settings)
        options = {name: same.value for name, same in options.items()}

        def call():
            return self._generate(generation_config=config, **inputs, **options)

        with _quiet():
            return with_autograph(call)

    def _effective(self, options: dict) -> tuple[Any, dict]:
        """The generation config that `model.generate` would use, and the options that are none of its own."""
        config = options.pop("generation_config", None)
        if config is None:
            config = generation_config(self._model)
        config = copy.deepcopy(config)
        # None switches off what the model's settings have; its ends, and what it is padded with, stay.
        known = vars(config).keys() - set(_STAY)
        options = {name: value for name, value in options.items() if value is not None or name in known}
        options = config.update(**options)
        ends = _ends(config)
        if config.pad_token_id is None and ends:
            config.pad_token_id = ends[0]
        return config, options

    def _prompt(self, tensors: dict, config: Any) -> "_Prompt":
        """The checked prompts, and the bucket that they go into; `config` is made to count without the padding."""
        ids = tensors[_IDS]
        if ids.ndim != 2 or 0 in ids.shape or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"{self.__name__} received input_ids of shape {ids.shape} and dtype {ids.dtype}; it expects integers "
                "of shape (batch, length), at least one of each. For one prompt pass ids[None]."
            )
        vocabulary = self._model.config.vocab_size
        if ids.min() < 0 or ids.max() >= vocabulary:
            bad = ids[(ids < 0) | (ids >= vocabulary)][0]
            raise ValueError(f"{self.__name__} received the token id {bad}; it expects ids from 0 to {vocabulary - 1}.")
        mask = tensors.get(_MASK)
        if mask is None:
            pad = config.pad_token_id
            mask = np.ones_like(ids) if pad is None or pad in _ends(config) else ids != pad
        if mask.shape != ids.shape:
            raise ValueError(
                f"{self.__name__} received an attention_mask of shape {mask.shape}; it expects that of the ids, "
                f"{ids.shape}."
            )
        mask = mask.astype(bool)
        if not mask.any(axis=1).all():
            row = int(np.flatnonzero(~mask.any(axis=1))[0])
            raise ValueError(f"{self.__name__} received an empty prompt in row {row}; it expects at least one token.")
        # A decoder counts positions by the mask, so only the real tokens matter; an encoder sees them as they stand.
        longest = int(mask.sum(axis=1).max()) if self._decoder_only else ids.shape[1]
        rows, length = self._buckets.fit(_IDS, 0, len(ids)), self._buckets.fit(_IDS, 1, longest)
        limit = getattr(self._model.config, "max_position_embeddings", None)
        if limit is not None and not hasattr(self._model.config, "rope_theta"):
            self._check_room(longest, limit, self._new_tokens(config, ids.shape[1]) if self._decoder_only else 0)
            length = min(length, limit)
        if self._decoder_only:
            config.max_new_tokens = self._new_tokens(config, ids.shape[1])
            if config.min_length:
                config.min_length += length - ids.shape[1]
        return _Prompt(ids.astype(np.int32), mask, rows, length)

    def _check_room(self, length: int, limit: int, new: int) -> None:
        if length + new > limit:
            raise ValueError(
                f"{self.__name__} received a prompt of {length} tokens{f' for {new} new ones' if new else ''}; the "
                f"model has {limit} positions. Shorten the prompt{', or pass less max_new_tokens' if new else ''}."
            )

    def _new_tokens(self, config: Any, length: int) -> int:
        if config.max_new_tokens is not None:
            return config.max_new_tokens
        new = config.max_length - length
        if new < 1:
            raise ValueError(
                f"{self.__name__} received prompts of {length} columns with max_length={config.max_length}, which "
                "counts the prompt; pass max_new_tokens."
            )
        if not self._warned:
            self._warned = True
            warn(
                f"{self.__name__}: max_length={config.max_length} counts the prompt, so every other prompt length "
                "compiles again. Pass max_new_tokens."
            )
        return new

    def _padded(self, tensors: dict, prompt: "_Prompt") -> dict:
        """Every tensor of the prompt's shape, padded to the bucket; the mask always, and the others as they are."""
        given, mask, rows, length = prompt
        count = len(given)

        def place(values, fill):
            """`values (batch, length)` in `(rows, length)`, behind or before the rows' own `fill`."""
            out = np.repeat(np.asarray(fill, values.dtype).reshape(-1, 1), length, axis=1)
            for i in range(count):
                row = values[i, mask[i]] if self._decoder_only else values[i]
                out[i, slice(length - len(row), None) if self._decoder_only else slice(len(row))] = row
            return np.concatenate([out, np.repeat(out[:1], rows - count, axis=0)])

        # The padding repeats the row's own first token: repetition_penalty then sees no token that is not there.
        first = given[np.arange(count), mask.argmax(axis=1)]
        zeros = np.zeros(count)
        # What the decoder begins with only happens to be of that shape.
        own = {name: x for name, x in tensors.items() if name.startswith("decoder_")}
        like_ids = {n: place(x, zeros) for n, x in tensors.items() if x.shape == given.shape and n not in own}
        own = {
            name: np.concatenate([x, np.repeat(x[:1], rows - count, axis=0)])
            for name, x in own.items()
            if x.shape[:1] == (count,)
        }
        padded = {_IDS: place(given, first), _MASK: place(mask.astype(np.int32), zeros)}
        return {**tensors, **own, **like_ids, **padded}

    def _as_given(self, outputs: Any, prompt: "_Prompt", config: Any) -> Any:
        """The outputs with the prompts as they were passed, and without the rows that only fill the bucket."""
        copies, filled = config.num_return_sequences, prompt.rows > len(prompt.ids)

        def cut(x):
            rows = ops.is_tensor(x) and len(x.shape) and x.shape[0] == prompt.rows * copies
            return x[: len(prompt.ids) * copies] if filled and rows else x

        sequences = outputs if ops.is_tensor(outputs) else outputs["sequences"]
        sequences = cut(sequences)
        if self._decoder_only:
            head = ops.convert_to_tensor(np.repeat(prompt.ids, copies, axis=0))
            sequences = ops.concatenate([head, sequences[:, prompt.length :]], axis=1)
        if ops.is_tensor(outputs):
            return sequences
        for name, value in outputs.items():
            outputs[name] = sequences if name == "sequences" else keras.tree.map_structure(cut, value)
        return outputs


class _Prompt(NamedTuple):
    ids: np.ndarray  # [batch, length] int32, as given
    mask: np.ndarray  # [batch, length] bool
    rows: int  # bucket of the batch
    length: int  # bucket of the length


class _Same:
    """A static value, equal to an equal one, or to itself where it has no hash; a list, to one of the same things."""

    def __init__(self, value: Any):
        self.value = value
        self._key: Any
        if isinstance(value, (list, tuple)):  # as it is now: a list of processors may change before the next call
            self._key = type(value), tuple(map(_Same, value))
            return
        try:
            hash(value)
        except TypeError:
            self._key = id(value)
        else:
            self._key = value

    def __eq__(self, other):
        return isinstance(other, _Same) and other._key == self._key

    def __hash__(self):
        return hash(self._key)

    def __repr__(self):
        return repr(self.value)


class _Weights(_Same):
    """The variables of a model, whatever their values: others take their places where a model is resized."""

    def __repr__(self):
        return f"<{len(self.value)} variables>"


def _settings(config: Any) -> dict:
    """What differs from the defaults of a generation config; every value is a part of the executable."""
    return _by_name({n: x for n, x in config.to_diff_dict().items() if n != "transformers_version" and n[0] != "_"})


def _by_name(values: dict) -> dict:
    """In one order, in whatever order they were passed: an executable is for one order."""
    return dict(sorted(values.items()))


def _ends(config: Any) -> list[int]:
    ends = config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) or ops.is_tensor(x)


def _array(x: Any) -> np.ndarray:
    x = ops.convert_to_numpy(x) if ops.is_tensor(x) else np.asarray(x)
    return x.astype(np.int32) if x.dtype == np.int64 and not (x.size and abs(x).max() >= 2**31) else x


@contextlib.contextmanager
def _quiet():
    """Without the warning of right padding, which is logged while a graph is traced whatever the prompts are."""
    logger = logging.getLogger("transformers.generation.tf_utils")

    def keep(record):
        return "right-padding was detected" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
