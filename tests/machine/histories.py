"""Histories that were thought out: few calls of the world that lead to what random ones seldom come to.

Each is gone through as it is, and with a process killed in one of its turns (`World.doom`), with or without a bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from world import LOOK, MINUTE, TICK, Doom, World

from logprobe.collectors.correction.presets import preset

OWN = preset("tis")  # of a trainer that does not ask
History = Callable[[World], None]
HISTORIES: dict[str, History] = {}
IN_A_BUCKET = {"uploads are spoiled", "the service loses its machine"}  # that say nothing without one
UNKILLED = {"a folder fails or is another"}  # that have a service at certain moments
MOST_TURNS = 9  # most histories have that many, and more


def history(made: History) -> History:
    HISTORIES[made.__name__.replace("_", " ")] = made
    return made


def stored(world: World, *runs: int, steps: int = 2) -> None:
    """Record some steps of runs, and bring them into the archive."""
    for run in runs:
        world.record(run, steps, world.done["steps"])
        world.flush(run)
    world.ship()
    world.serve(*TICK, *MINUTE)


@history
def what_cannot_be_read_waits(world: World) -> None:
    world.record(0, 2, 1)
    world.flush(0)
    world.ship()
    world.trouble("unread", 1.0, below=".arrow")
    world.serve(*TICK, *TICK)
    world.check()


@history
def an_answer_is_lost(world: World) -> None:
    for kind in ("training", "rollout"):
        stored(world, 0)
        world.record(0, 2, world.done["steps"])
        world.trouble("unanswered", 1.0, below=f".{kind}.")  # the segment is in its place, and its writer does not know
        world.flush(0)
        world.heal()
        world.ship()
        world.serve(*TICK)
        world.clock.up += 60.0
    world.check()


@history
def a_full_disk(world: World) -> None:
    for seed in range(3):
        world.record(0, 2, seed)
        world.flush(0, how="full 1.0 before")
    world.check()


@history
def power_goes(world: World) -> None:
    for seed in range(4):
        world.record(0, 1, seed)
        world.flush(0)
        if seed % 2:
            world.power_cut("node")
        world.ship()
        world.serve(*TICK, *MINUTE)
        world.power_cut("home")
        world.lose_index()
        world.check()


@history
def a_recorder_is_killed(world: World) -> None:
    for number, kill in enumerate(range(3, 100, 6)):
        world.record(0, 1, number)
        world.flush(0, kill=kill)
        if number % 2:
            world.power_cut("node")
        world.ship()
        world.serve(*TICK)
    world.clock.up += 60.0
    world.check()


@history
def the_service_is_killed_on_its_way(world: World) -> None:
    for number, kill in enumerate(range(4, 100, 16)):
        for part in range(2):
            world.record(number % 2, 1, 2 * number + part)
            world.flush(number % 2)
        world.ship()
        world.serve(*TICK)
        world.serve(*MINUTE, kill=kill)
        world.lose(("", "power", "index")[number % 3])
        world.check()


@history
def small_files_become_one(world: World) -> None:
    for _ in range(5):
        stored(world, 0, 1)
    world.check()
    world.lose_index()
    stored(world, 0)
    world.check()


@history
def copies_come_late(world: World) -> None:
    for part in range(2):  # of one file
        world.record(0, 1, part)
        world.flush(0)
    world.ship()
    world.serve(*TICK, *MINUTE)
    for seed in range(4):
        world.copy(seed)
    stored(world, 0)
    world.check()
    world.retire()
    for seed in range(4):
        world.copy(seed)
    world.lose_index()
    world.check()


@history
def somebody_lays_files_into_the_archive(world: World) -> None:
    stored(world, 0, 1)
    for seed in range(6):
        world.plant(seed % 2, seed)
    stored(world, 0)
    world.lose_index()
    world.check()
    world.delete(0)
    world.check()


@history
def an_older_index_comes_back(world: World) -> None:
    stored(world, 0, 1)
    world.keep_index()
    stored(world, 0)
    world.retire()
    stored(world, 1)
    world.older_index()
    world.check()


@history
def tokens_go_and_steps_freeze(world: World) -> None:
    stored(world, 0, 1, steps=4)
    world.retire()
    stored(world, 0, 1, steps=3)
    world.freeze()
    world.lose_index()
    world.check()


@history
def records_wait_longer_than_their_trainer(world: World) -> None:
    stored(world, 0, steps=3)
    world.record(0, 1, 1)
    world.flush(0, kinds="sampled")
    world.crash(0)
    world.skew("node", 7200.0)
    stored(world, 0, steps=2)
    world.freeze()  # took them by the clock
    world.check()


@history
def a_frozen_step_is_trained_again(world: World) -> None:
    stored(world, 0, 1, steps=6)
    world.freeze()
    for run in (0, 1):
        world.resume(run, 2)
    stored(world, 0, 1, steps=3)
    world.check()
    world.lose_index()
    world.check()


@history
def the_engine_is_late(world: World) -> None:
    world.record(1, 3, 1)
    world.flush(1, kinds="trained")
    world.ship()
    world.serve(*TICK, *MINUTE)
    world.restart()
    world.serve(*TICK)
    world.flush(1, kinds="sampled")
    world.check()


@history
def a_deleted_run_goes_on(world: World) -> None:
    stored(world, 0, 1)
    world.delete(0)
    for seed in range(2):
        world.late(seed)
        world.ship()
        world.serve(*TICK)
        world.nothing_of_the_deleted()
    world.check()


@history
def deletions_stay(world: World) -> None:
    stored(world, 0, 1, 2)
    for run in range(3):
        world.delete(run)
        world.power_cut("home")
        world.late(run)
    world.check()


@history
def a_user_is_remembered(world: World) -> None:
    stored(world, 0)
    world.command(0, "armed")
    world.silence(0)
    world.power_cut("home")
    world.lose_index()
    world.check()


@history
def a_command_is_killed_and_given_again(world: World) -> None:
    stored(world, 0)
    for kill in range(0, 100, 12):
        world.command(0, "stop", kill=kill)  # perhaps after it was journaled, and before its commit
        world.serve(*TICK)
        world.command(0, "release")
    world.lose_index()  # the journal has two actions of one number, and no start came past them
    world.serve(*TICK)
    world.check()


@history
def a_correction_goes_its_way(world: World) -> None:
    for command in ("on", "off", "armed"):
        stored(world, 0)
        world.serve(*LOOK)
        world.command(0, command)
        world.ship()
    stored(world, 0)
    world.check(look=True)


@history
def directives_keep_their_numbers(world: World) -> None:
    a_correction_goes_its_way(world)
    world.lose_index(journal=True)
    stored(world, 0)
    world.command(0, "on")
    world.ship()
    stored(world, 0)
    world.check(look=True)


@history
def a_trainer_has_a_correction_of_its_own(world: World) -> None:
    stored(world, 0)
    world.serve(*LOOK)
    world.run(0).own = OWN
    world.command(0, "on")
    world.ship()
    stored(world, 0, steps=4)
    world.check(look=True)


@history
def a_message_kills_its_sender(world: World) -> None:
    for number, stage in enumerate(("arriving", "arrived", "arriving")):
        world.record(2, 3, number, sick=number % 2 == 0)
        world.flush(2)
        world.ship()
        world.serve(*TICK)
        world.clock.up += 10.0
        world.dying(stage, *LOOK)
        world.check(look=True)


@history
def uploads_are_spoiled(world: World) -> None:
    world.record(0, 2, 1)
    world.flush(0)
    world.cut(1.0, ("corrupted",))
    world.ship()
    world.heal()
    world.check()


@history
def the_service_loses_its_machine(world: World) -> None:
    stored(world, 0, 1)
    world.cut(0.5, ("refused", "answer lost"))
    stored(world, 0, 1)
    world.heal()
    world.serve(*TICK, *MINUTE)
    world.lose_home()
    world.check()


@history
def a_folder_fails_or_is_another(world: World) -> None:
    stored(world, 0, 1)
    for run in (0, 1):
        world.record(run, 1, run)
        world.flush(run)
    world.harm(0)
    for theirs in (True, False):
        world.record(0, 1, 1)
        world.flush(0)  # what waits would be merged into it
        world.ship()
        world.elsewhere(theirs=theirs)
    world.check()


def go_through(name: str, place: Path, *, bucket: bool = False, doom: Doom | None = None) -> World:
    """Go through a history in a folder, and see at its end that what is in files alone is the truth; return its
    world."""
    with World(place, 1, bucket=bucket) as world:
        world.doom = doom
        HISTORIES[name](world)
        world.lose_index()
        world.check()
    return world


def drawn(seed: int) -> tuple[str, bool, Doom]:
    """Draw a history, whether there is a bucket, and when a process of it is killed."""
    draw = Random(seed)
    name = draw.choice([name for name in HISTORIES if name not in UNKILLED])
    lost = draw.choice(["", "power", "index", "journal"])
    return name, draw.random() < 0.5, Doom(draw.randrange(1, MOST_TURNS), draw.randrange(100), lost)
