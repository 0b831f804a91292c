"""Everything a prompt may be, as rows of ids: 1-D int32 arrays without padding."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

import keras
import numpy as np

from keras_xla.generation.columns import as_list

Message = Mapping[str, Any]


def refuse_none(method: str, inputs: Any, options: Mapping[str, Any]) -> None:
    """Raise `TypeError` where a method got no inputs, or what a tokenizer returned one by one."""
    if inputs is None:
        named = [name for name in ("input_ids", "input_features", "attention_mask") if name in options]
        hint = f" Pass {', '.join(named)} in one dict: layer.{method}(inputs), not **inputs." if named else ""
        raise TypeError(f"{method} received no inputs; expected texts, chats, token ids or speech.{hint}")


def is_text(inputs: Any) -> bool:
    """Whether the inputs are strings or chats rather than ids."""
    if isinstance(inputs, (str, bytes)):
        return True
    if isinstance(inputs, Mapping):
        return "role" in inputs or "content" in inputs
    if isinstance(inputs, (list, tuple)):
        return is_text(_telling(inputs, None))
    dtype = getattr(inputs, "dtype", None)
    if getattr(dtype, "kind", None) == "O":  # strings or chats, if the first is one: lists of ids come so, too
        return is_text(_telling(np.asarray(inputs).flat, ""))
    return dtype == "string" or getattr(dtype, "kind", None) in ("U", "S", "T")


def _telling(prompts: Iterable, default: Any) -> Any:
    """The first prompt that tells of what kind all are: no gap of a table, which is None or NaN, and no empty list."""
    kinds = (x for x in prompts if x is not None and not (isinstance(x, float) and x != x))
    return next((x for x in kinds if not isinstance(x, (list, tuple)) or x), default)


def is_features(inputs: Any) -> bool:
    """Whether the inputs are the features of speech."""
    return isinstance(inputs, Mapping) and "input_features" in inputs


def features(inputs: Mapping[str, Any]) -> Any:
    """The features of speech among the inputs.

    Raises:
        ValueError: for others beside them; the mask that feature extractors make has nothing to say.
    """
    if unknown := sorted(set(inputs) - {"input_features", "attention_mask"}):
        raise ValueError(
            f"Received a dict with {', '.join(map(repr, unknown))} beside 'input_features'; expected that alone. What "
            "a transcript begins with follows from the options language and task."
        )
    return inputs["input_features"]


def leaf(inputs: Any) -> Any:
    """The tensor whose kind and batch size speak for all of the inputs."""
    if isinstance(inputs, Mapping):
        return next((inputs[name] for name in ("input_ids", "input_features") if name in inputs), inputs)
    return inputs


def texts(inputs: Any, kind: str = "Prompt") -> list[str | list[Message]]:
    """The prompts of text inputs, each a string or a chat (a list of messages); errors call them by their `kind`.

    Accepts a string, a list or array of strings, a list of messages, or a list of such lists.

    Raises:
        ValueError: for an empty list, string or chat, or messages without `role` and `content`.
        TypeError: for anything in between.
    """
    if isinstance(inputs, (str, bytes)):
        prompts: list[Any] = [inputs]
    elif isinstance(inputs, (list, tuple)):
        prompts = [list(inputs)] if inputs and isinstance(inputs[0], Mapping) else list(inputs)
    elif isinstance(inputs, Mapping):
        raise TypeError(f"Received {inputs!r}, one message; expected a list of messages. Pass it in a list.")
    else:
        prompts = strings(inputs)
    if not prompts:
        raise ValueError("Received no prompts; expected at least one.")
    return [_text(f"{kind} {i}", i, prompt) for i, prompt in enumerate(prompts)]


def one_by_one(inputs: Any) -> list:
    """Inputs of one prompt each, of the kind of those for all; nothing for what is no list of prompts.

    Raises:
        ValueError: for a dict of lists of different lengths.
    """
    if isinstance(inputs, Mapping) and not is_text(inputs):
        lists = {name: one_by_one(value) for name, value in inputs.items() if value is not None}
        if len(lengths := {len(each) for each in lists.values()}) > 1:
            raise ValueError(
                f"Received a dict of lists of the lengths {sorted(lengths)}; expected one for each prompt."
            )
        return [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]
    if isinstance(inputs, (str, bytes, Mapping)):
        return [[inputs]]
    inputs = as_list(inputs)
    if isinstance(inputs, (list, tuple)):
        chat = bool(inputs) and isinstance(inputs[0], Mapping)
        ids = bool(inputs) and all(isinstance(each, Integral) for each in inputs)  # of one prompt, which is refused
        return [[list(inputs)]] if chat else [] if ids else [[each] for each in inputs]
    if is_text(inputs):
        return [[each] for each in strings(inputs)]
    array = _array(inputs)
    column = array.ndim == 1 and array.dtype == object  # of lists of ids
    return [array[i : i + 1] for i in range(len(array))] if array.ndim > 1 or column else []


def strings(inputs: Any) -> list[str | bytes]:
    """The strings of an array or tensor, `(batch,)` or `(batch, 1)`, or of one string.

    Raises:
        ValueError: for another shape.
    """
    array = np.asarray(inputs.numpy() if hasattr(inputs, "numpy") else inputs)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim > 1:
        raise ValueError(f"Received strings of shape {array.shape}; expected (batch,) or (batch, 1).")
    return array.reshape(-1).tolist()


def rows(inputs: Any, pad: int | None = None, holes: bool = True) -> list[np.ndarray]:
    """The rows of id inputs.

    Accepts a `(batch, length)` array or tensor of ints, a ragged tensor, a list of lists of ints, or
    `{"input_ids": ..., "attention_mask": ...}`. Padding, on either side, is what the mask says; without
    one it is `pad`, where that is given. Without `holes`, a mask may leave out tokens at the ends alone.

    Raises:
        TypeError: for ids or a mask of a float dtype, and for inputs that are none of the above.
        ValueError: for a wrong rank, an empty batch, a mask of another shape, with values beside 0 and 1, or with holes
            that may not be there.
    """
    mask = None
    if inputs is None or isinstance(inputs, (bool, int, float)):
        raise TypeError(f"Received {inputs!r}; expected text, or token ids of shape (batch, length).")
    if isinstance(inputs, (Set, Iterator)):
        raise TypeError(f"Received a {type(inputs).__name__}; expected text or token ids. Pass a list of its elements.")
    if isinstance(inputs, Mapping):
        unknown = set(inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if "input_ids" not in inputs or unknown:
            raise ValueError(
                f"Received a dict with the keys {sorted(inputs)}; expected 'input_ids', and 'attention_mask' "
                "where there is padding."
            )
        kinds = as_list(inputs.get("token_type_ids"))
        if kinds is not None and any(np.any(_array(row)) for row in kinds):
            raise ValueError("Received token_type_ids beside 0; expected prompts of one kind. Leave them out.")
        inputs, mask = inputs["input_ids"], inputs.get("attention_mask")
    inputs, mask = as_list(inputs), as_list(mask)
    if isinstance(inputs, (list, tuple)):
        return _ragged(list(inputs), mask, pad, holes)
    ids = _array(inputs)
    if ids.dtype == object and ids.ndim == 1:  # a column of lists
        return _ragged(ids.tolist(), mask, pad, holes)
    if ids.ndim != 2:
        raise ValueError(f"Received ids of shape {ids.shape}; expected (batch, length). For one prompt pass ids[None].")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"Received ids of dtype {ids.dtype}; expected an integer dtype. Cast them to int32.")
    if 0 in ids.shape:
        raise ValueError(f"Received ids of shape {ids.shape}; expected at least one prompt and one token.")
    if mask is not None:
        keep = _mask(_array(mask), ids.shape, holes)
    elif pad is not None:
        keep = _between_padding(ids, pad)
    else:
        keep = np.ones(ids.shape, bool)
    return [_int32(row[kept]) for row, kept in zip(ids, keep, strict=True)]


def require_integers(ids: Any) -> None:
    """Raise for symbolic ids of another dtype: `keras.Input` and a `Sequential` without one have floats by default."""
    if hasattr(ids, "dtype") and not keras.backend.is_int_dtype(keras.backend.standardize_dtype(ids.dtype)):
        raise TypeError(
            f"Received symbolic ids of dtype {ids.dtype}; expected an integer dtype. Begin the model with "
            'keras.Input((None,), dtype="int32"), or for texts keras.Input((), dtype="string").'
        )


def split_decoder(inputs: Any) -> tuple[Any, Any]:
    """The inputs of an encoder, and the `decoder_input_ids` among them or None."""
    if not isinstance(inputs, Mapping) or "decoder_input_ids" not in inputs:
        return inputs, None
    return {k: v for k, v in inputs.items() if k != "decoder_input_ids"}, inputs["decoder_input_ids"]


def decoder_rows(ids: Any, start: int | None) -> list[np.ndarray]:
    """The rows of `decoder_input_ids`, each led by the token that a decoder starts with, `start`."""
    return [row if start is None or (len(row) and row[0] == start) else np.insert(row, 0, start) for row in rows(ids)]


def _text(name: str, i: int, prompt: Any) -> str | list[Message]:
    if isinstance(prompt, bytes):
        try:
            prompt = prompt.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is no UTF-8 text: {error}. Decode it with its own encoding.") from None
    if isinstance(prompt, (list, tuple)) and all(isinstance(message, Mapping) for message in prompt):
        for message in prompt:
            _check_message(i, message)
    elif not isinstance(prompt, str):
        raise TypeError(f"{name} is a {type(prompt).__name__}; expected a string, like the first.")
    if not prompt:
        raise ValueError(f"{name} is empty; expected at least one character or message.")
    return prompt


def _check_message(i: int, message: Message) -> None:
    calls = "tool_calls" in message  # then there may be nothing beside them
    if not ({"role"} if calls else {"role", "content"}) <= set(message):
        raise ValueError(f"Chat {i} has a message with the keys {sorted(message)}; expected 'role' and 'content'.")
    content = message.get("content")
    if not isinstance(message["role"], str) or not (isinstance(content, (str, list)) or (content is None and calls)):
        raise TypeError(
            f"Chat {i} has a message with role={message['role']!r} and content={content!r}; expected strings, "
            "or as the content a list of parts."
        )


def _between_padding(ids: np.ndarray, pad: int) -> np.ndarray:
    """Where `ids (..., length)` are no padding. Only at the ends: the same token inside a prompt is a token."""
    real = ids != pad
    before, after = np.cumsum(real, axis=-1), np.cumsum(real[..., ::-1], axis=-1)[..., ::-1]
    return (before > 0) & (after > 0)


def _ragged(prompts: Sequence, mask: Any, pad: int | None, holes: bool) -> list[np.ndarray]:
    if not prompts:
        raise ValueError("Received no prompts; expected at least one.")
    arrays = [_array(prompt) for prompt in prompts]
    for i, array in enumerate(arrays):
        if isinstance(prompts[i], Mapping):
            chats = " Of rows with chats pass the chats: [row['messages'] for row in rows]."
            raise TypeError(
                f"Prompt {i} is a {type(prompts[i]).__name__}; expected one dict with the ids of all prompts."
                f"{chats if 'messages' in prompts[i] else ''}"
            )
        if array.ndim != 1:
            raise ValueError(f"Prompt {i} has shape {array.shape}; expected a list of ids. For one prompt pass [ids].")
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"Prompt {i} has dtype {array.dtype}; expected ints.")
    if mask is None:
        return [_int32(array if pad is None else array[_between_padding(array, pad)]) for array in arrays]
    if len(mask) != len(arrays):
        raise ValueError(f"Received {len(mask)} attention masks for {len(arrays)} prompts; expected one for each.")
    masks = [_mask(_array(m), array.shape, holes) for m, array in zip(mask, arrays, strict=True)]
    return [_int32(array[kept]) for array, kept in zip(arrays, masks, strict=True)]


def _int32(ids: np.ndarray) -> np.ndarray:
    limits = np.iinfo(np.int32)
    if (outside := ids[(ids > limits.max) | (ids < limits.min)]).size:
        raise ValueError(f"Received the token id {outside[0]}; expected ids that fit into int32.")
    return ids.astype(np.int32)


def _mask(mask: np.ndarray, shape: tuple[int, ...], holes: bool) -> np.ndarray:
    if mask.shape != shape:
        raise ValueError(f"Received an attention_mask of shape {mask.shape}; expected that of the ids, {shape}.")
    if mask.dtype != bool and not np.issubdtype(mask.dtype, np.integer):
        raise TypeError(
            f"Received an attention_mask of dtype {mask.dtype}; expected bool or int, 1 for tokens and 0 for "
            "padding. An additive float mask is something else: pass mask == 0."
        )
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"Received an attention_mask with the values {np.unique(mask)[:5]}; expected 0 and 1.")
    mask = mask.astype(bool)
    if not holes and (mask != _between_padding(mask.astype(np.int8), 0)).any():
        raise ValueError(
            "Received an attention_mask with zeros between tokens for an encoder, to which the others would move "
            "closer here; expected zeros for padding at the ends only. Leave these tokens out of the ids."
        )
    return mask


def _array(x: Any) -> np.ndarray:
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"Received ids of uneven shape: {error}. Pass a list of lists of ints.") from error
