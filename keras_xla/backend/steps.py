"""How steps and functions run, from the backend that Keras runs on."""

import importlib

from keras_xla.backend import name as _name

_module = importlib.import_module(f"keras_xla.backend.{_name}.steps")
_functions = importlib.import_module(f"keras_xla.backend.{_name}.functions.compile_function")
make_runner = _module.make_runner
TakingRows = _module.TakingRows
must_be_freed = _module.must_be_freed
make_state_runner = _module.make_state_runner
predict_data = _module.predict_data
is_distributed = _module.is_distributed
reads_ahead = _module.reads_ahead
replace_functions = _module.replace_functions
require_private = _module.require_private
restore_functions = _module.restore_functions
runs_eagerly = _module.runs_eagerly
state_maker = _module.state_maker
watched_step = _module.watched_step
forward_blockers = _functions.forward_blockers
compile_function = _functions.compile_function
is_in_trace = _functions.is_in_trace
is_weak = _functions.is_weak
runs_python = _functions.runs_python
output_shapes = _functions.output_shapes
to_tensor = _functions.to_tensor
cut = _functions.cut
pad = _functions.pad
end_of_data = _module.end_of_data
DATA_ENDED = _module.DATA_ENDED
draws_by_row = _module.draws_by_row
is_of_trace = _functions.is_of_trace
with_autograph = _functions.with_autograph
without_autograph = _functions.without_autograph
