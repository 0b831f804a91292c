"""Transcribe speech with Whisper: text, and subtitles with the times at which it was said.

python examples/transcribe.py speech.wav another.flac         # openai/whisper-tiny.en from the Hugging Face hub
python examples/transcribe.py speech.wav --model path/to/folder --srt

Files other than 16-bit wav of 16,000 Hz need the extra: in a checkout, pip install ".[audio]".
"""

import argparse
import time

import keras_xla


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--model", default="openai/whisper-tiny.en")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--srt", action="store_true", help="print subtitles")
    args = parser.parse_args()

    layer = keras_xla.XLAGenerationLayer.from_pretrained(args.model, num_beams=args.beams)
    start = time.perf_counter()
    transcripts = layer.generate(args.files, return_timestamps=args.srt or None)
    print(f"{len(args.files)} file(s) in {time.perf_counter() - start:.2f} s, with compilations that later calls reuse")
    for file, transcript in zip(args.files, transcripts, strict=True):
        print(f"\n{file}\n{transcript.srt() if args.srt else transcript}")


if __name__ == "__main__":
    main()
