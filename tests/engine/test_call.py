"""What a call asks for, and what of it belongs to some of its prompts."""

import numpy as np
import pytest

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Part
from keras_xla.engine.call import Call

PROMPTS = [np.array(ids, np.int32) for ids in ([1, 2, 3], [4], [5, 6], [7, 8])]
TWICE = GenerationOptions(do_sample=True, num_return_sequences=2, max_new_tokens=(9, 8, 7, 6))


def part_of(call, prompts, room_for=0):
    prompts = np.array(prompts)
    return call.of(Part(prompts, call.options.of_rows(prompts), room_for=room_for))


def test_all_that_belongs_to_a_prompt_goes_with_it():
    stops, guides = [f"stop {row}" for row in range(8)], [f"guide {row}" for row in range(8)]
    call = Call(PROMPTS, TWICE, PROMPTS[::-1], negative=PROMPTS, stops=stops, guides=guides, first_row=5)
    some = part_of(call, [2, 0], room_for=3)
    assert [row.tolist() for row in some.prompts] == [[5, 6], [1, 2, 3]] == [row.tolist() for row in some.negative]
    assert [row.tolist() for row in some.decoder] == [[4], [7, 8]]
    assert some.options.max_new_tokens == (7, 9) and some.copies == 2
    assert some.stops == ["stop 4", "stop 5", "stop 0", "stop 1"] and some.guides == [
        f"guide {i}" for i in (4, 5, 0, 1)
    ]
    assert some.numbers.tolist() == [4, 5, 0, 1] and (some.first_row, some.room_for) == (5, 3)


def test_what_is_not_given_stays_so():
    some = part_of(Call(PROMPTS, TWICE), [1])
    assert some.decoder is some.negative is some.hidden is None
    assert not some.stops and not some.guides


def test_rows_of_a_part_of_a_part_have_the_numbers_of_the_whole():
    some = part_of(part_of(Call(PROMPTS, TWICE, room_for=4), [3, 1, 0]), [1, 2])
    assert [row.tolist() for row in some.prompts] == [[4], [1, 2, 3]]
    assert some.numbers.tolist() == [2, 3, 0, 1]
    assert some.room_for == 4


def test_negative_prompts_are_the_last_tokens_one_for_all_or_one_for_each():
    guided = GenerationOptions(guidance_scale=1.5)
    assert Call(PROMPTS, GenerationOptions()).negative_prompts is None
    assert [row.tolist() for row in Call(PROMPTS, guided).negative_prompts] == [[3], [4], [6], [8]]
    assert Call(PROMPTS, guided, negative=PROMPTS[:1]).negative_prompts == PROMPTS[:1] * 4
    assert Call(PROMPTS, guided, negative=PROMPTS).negative_prompts == PROMPTS
    with pytest.raises(ValueError, match="Received 2 negative prompts for 4 prompts; expected one for each, or one"):
        _ = Call(PROMPTS, guided, negative=PROMPTS[:2]).negative_prompts
