"""TensorBoard's files, which TensorFlow writes, on whatever backend Keras runs."""

import os


class Summaries:
    """Scalars and texts in a folder that TensorBoard shows; TensorBoard itself need not be installed.

    The folder is made at the first summary. Where TensorFlow is not installed, an `ImportError` tells so in the name of
    `who`.
    """

    def __init__(self, who: str, folder: str | os.PathLike):
        try:
            import tensorflow
        except ImportError as error:
            raise ImportError(
                f"{who} writes TensorBoard's files with TensorFlow, which cannot be imported here ({error}). "
                "Run: python -m pip install tensorflow. Or leave log_dir out."
            ) from error
        self._tf, self._folder, self._writer = tensorflow, os.fspath(folder), None

    def scalar(self, tag: str, value: float, step: int) -> None:
        """A point of a curve."""
        self._write(tag, self._tf.constant(value, self._tf.float32), step, "scalars", data_class=1)

    def text(self, tag: str, text: str, step: int) -> None:
        """A text; Markdown."""
        self._write(tag, self._tf.constant([text]), step, "text", data_class=2)

    def flush(self) -> None:
        """Have everything in the file."""
        if self._writer is not None:
            self._writer.flush()

    def _write(self, tag, tensor, step, plugin, data_class):
        # tf.summary.scalar and tf.summary.text do the same, but they are part of TensorBoard's package.
        metadata = self._tf.compat.v1.SummaryMetadata(data_class=data_class)
        metadata.plugin_data.plugin_name = plugin
        if self._writer is None:
            self._writer = self._tf.summary.create_file_writer(self._folder)
        with self._writer.as_default(), self._tf.summary.record_if(True):
            self._tf.summary.write(tag, tensor, step=step, metadata=metadata)
