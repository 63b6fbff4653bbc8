"""Says of recordings what was said in them, and how pleased the speaker was.

Two stages: speech becomes text, by a model that is loaded once in each process and takes most of
the time; words are then looked up in AFINN-111, a list of how pleased or displeased they sound.
"""

import wave
from pathlib import Path
from typing import Any

import afinn
import pocketsphinx

import everstream as es
from everstream_lab.apps.application import Application, json_line
from everstream_lab.apps.generators.speech import Recordings, make_speech
from everstream_lab.apps.models import once_per_thread

RECORDINGS = {
    "test": Recordings(files=2, sentences=1),
    "small": Recordings(files=4, sentences=3),
    "medium": Recordings(files=4, sentences=20),
    "large": Recordings(files=16, sentences=20),
    "huge": Recordings(files=64, sentences=20),
}


@once_per_thread
def listener() -> Any:
    """Transcribes each recording independently of earlier ones."""
    return pocketsphinx.Decoder(samprate=16_000, cmn="batch", loglevel="FATAL")


@once_per_thread
def word_list() -> Any:
    scores = afinn.Afinn()
    scores.setup_from_file(Path(afinn.__file__).parent / "data" / "AFINN-111.txt")
    return scores


def recordings(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.wav")))


def transcribe(path: str) -> dict[str, Any]:
    with wave.open(path) as recording:
        sound = recording.readframes(recording.getnframes())
    decoder = listener()
    decoder.start_utt()
    decoder.process_raw(sound, full_utt=True)
    decoder.end_utt()
    heard = decoder.hyp()
    return {"file": Path(path).name, "text": heard.hypstr if heard is not None else ""}


def score(transcript: dict[str, Any]) -> dict[str, Any]:
    return transcript | {"score": word_list().score(transcript["text"])}


def sequential(folder: Path, output: Path) -> None:
    scored = [score(transcribe(path)) for path in recordings(folder)]
    output.write_bytes(b"".join(sorted(map(json_line, scored))))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    sentiment = es.Pipeline("sentiment")
    source = sentiment.source(es.FromList(recordings(folder), batch=batch), name="recordings")
    transcripts = source.map(transcribe, name="transcribe", shards=shards)
    return transcripts.map(score, name="score", shards=1).sink(es.JsonLines(parts))


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    with es.ToStream(batch=batch):
        for path in recordings(folder):
            with es.Stage(replicate=shards, name="transcribe"):
                said = transcribe(path)
            with es.Stage(outputs=[said], sink=es.JsonLines(parts), name="score"):
                said = score(said)


APPLICATION = Application(
    name="sentiment",
    title="how pleased speakers are",
    sizes=RECORDINGS,
    make_input=make_speech,
    items=recordings,
    stages=(transcribe, score),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="sentiment.jsonl",
    witness="score",
)
