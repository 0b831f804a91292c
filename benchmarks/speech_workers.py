"""One contender in a process of its own: reads the path of a sound file a line, answers seconds and text a line.

python benchmarks/speech_workers.py NAME FOLDER
"""

import functools
import json
import sys
import tempfile
import time

THREADS = 2
WINDOW = 30  # seconds: longer sound is transcribed by timestamps


def ours(folder, **options):
    import keras_xla

    layer = keras_xla.XLAGenerationLayer.from_pretrained(folder, **options)
    return lambda path, seconds: str(layer.generate(path)[0])


def hf_torch(folder):
    import soundfile
    import torch
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)

    def run(path, seconds):
        sound, rate = soundfile.read(path, dtype="float32")
        options = dict(sampling_rate=rate, return_tensors="pt", return_attention_mask=True)
        if seconds > WINDOW:
            options |= dict(truncation=False, padding="longest")
        given = processor(sound, **options)
        with torch.no_grad():
            ids = model.generate(**given, return_timestamps=seconds > WINDOW)
        return processor.batch_decode(ids, skip_special_tokens=True)[0]

    return run


def faster_whisper(folder, kind):
    import ctranslate2
    import faster_whisper

    converted = tempfile.mkdtemp()
    converter = ctranslate2.converters.TransformersConverter(
        folder, copy_files=["tokenizer.json", "preprocessor_config.json"]
    )
    converter.convert(converted, quantization=kind, force=True)
    model = faster_whisper.WhisperModel(converted, device="cpu", compute_type=kind, cpu_threads=THREADS)

    def run(path, seconds):
        how = dict(beam_size=1, temperature=0.0, condition_on_previous_text=False)  # none tries again, hotter
        return "".join(
            segment.text for segment in model.transcribe(path, without_timestamps=seconds <= WINDOW, **how)[0]
        )

    return run


CONTENDERS = {
    "ours": ours,
    "ours-int8": functools.partial(ours, quantization="int8"),
    "hf-torch": hf_torch,
    "faster-whisper": functools.partial(faster_whisper, kind="float32"),
    "faster-whisper-int8": functools.partial(faster_whisper, kind="int8"),
}


def main(name, folder):
    run = CONTENDERS[name](folder)
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        text = run(job["path"], job["seconds"])
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "text": text.strip()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
