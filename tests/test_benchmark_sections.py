import doctest
import json
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts, not a package

import bench  # noqa: E402
import chart  # noqa: E402
import contenders  # noqa: E402
import figures  # noqa: E402
import measure  # noqa: E402
import programs  # noqa: E402
import reading  # noqa: E402
import rounds  # noqa: E402
import writing  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("module", [chart, figures, programs, reading, rounds])
def test_docstrings(module):
    assert doctest.testmod(module).failed == 0


def run(wall_s: float, peak_mb: float = 100) -> measure.Run:
    return measure.Run(wall_s, 2 * wall_s, peak_mb, 0, "")


def results_of(*walls: dict[str, float], **failures: str) -> rounds.Results:
    return rounds.Results([{k: run(v) for k, v in each.items()} for each in walls], failures)


ROUNDS = [
    {"ours": 1.0, "loop": 2.0},
    {"ours": 9.0, "loop": 10.0},  # a slow minute: both sides move, the ratio little
    {"ours": 1.2, "loop": 2.0},
]


class TestRounds:
    @pytest.mark.parametrize(
        ("walls", "ratio"),
        [
            (ROUNDS, 0.6),
            (ROUNDS[:2], 0.7),
            ([*ROUNDS, {"ours": 1.0}], 0.6),  # a round in which the base failed
            ([{"ours": 1.0}], None),
            ([], None),
        ],
    )
    def test_median_of_ratios_within_rounds(self, walls, ratio):
        expected = None if ratio is None else pytest.approx(ratio)
        assert rounds.median_ratio(walls, "ours", "loop") == expected

    def test_a_failing_contender_does_not_end_the_run(self, monkeypatch, tmp_path):
        (tmp_path / "data/images").mkdir(parents=True)
        (tmp_path / "data/instances.json").touch()
        say = "import sys; print('no such thing'); sys.exit(2)"
        taking_part = {
            "cat": contenders.Contender((sys.executable, "-c", "pass"), records=None),
            "bad": contenders.Contender((sys.executable, "-c", say)),
            "slow": contenders.Contender((sys.executable, "-c", "import time; time.sleep(60)")),
            "empty": contenders.Contender((sys.executable, "-c", "pass")),
            "absent": contenders.Contender(("/no/python", "-c", "pass")),
        }
        monkeypatch.setattr(rounds, "CONTENDERS", taking_part)
        data = contenders.Data(tmp_path / "data", 7)
        results = rounds.run_rounds(list(taking_part), data, 2, 1.5)
        assert [list(runs) for runs in results.rounds] == [["cat"], ["cat"]]
        absent = results.failures.pop("absent")
        assert absent.startswith("cannot start: [Errno 2] No such file")
        assert results.failures == {
            "bad": "exit 2: no such thing",
            "slow": "took more than 2 s",
            "empty": "wrote 0 of 7 records",
        }
        assert [path.name for path in tmp_path.iterdir()] == ["data"]  # outputs are deleted

    def test_outputs_go_where_they_are_told(self, monkeypatch, tmp_path):
        outputs = tmp_path / "elsewhere"
        outputs.mkdir()
        code = "import sys, pathlib; print(pathlib.Path(sys.argv[1]).parent)"
        contender = contenders.Contender((sys.executable, "-c", code, "{out}"), records=None)
        data = contenders.Data(tmp_path / "data", 1, outputs)
        found, fault = rounds.run_once(contender, data, 60)
        assert (found.last_line, fault) == (str(outputs), None)


class TestContenders:
    def environment(self, folder: Path) -> contenders.Environment:
        lock = folder / "requirements.lock"
        lock.write_text("peer==1.0\n")
        return contenders.Environment(folder / ".venv", lock)

    def test_an_environment_that_is_a_link_is_not_emptied(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs/kept").touch()
        environment = self.environment(tmp_path)
        environment.folder.symlink_to(tmp_path / "theirs")
        with pytest.raises(SystemExit, match=r"\.venv is a link: setting it up would empty"):
            contenders._make(environment)
        assert (tmp_path / "theirs/kept").exists()

    def test_an_environment_of_the_same_lock_is_left_as_it_is(self, tmp_path):
        environment = self.environment(tmp_path)
        environment.folder.mkdir()
        digest = sha256(environment.lock.read_bytes()).hexdigest()
        (environment.folder / ".installed").write_text(digest)
        contenders._make(environment)
        assert [path.name for path in environment.folder.iterdir()] == [".installed"]


def verdicts(section: figures.Section) -> dict[str, tuple[float | None, str]]:
    return {
        target.what: (target.measured and round(target.measured, 3), target.verdict())
        for target in section.targets
    }


class TestWriting:
    def test_main_section(self):
        results = results_of(
            {"ours": 2, "keras_loop": 4, "webdataset": 2},
            {"ours": 3, "keras_loop": 4, "webdataset": 2},
            tfds="exit 1: no | space",
        )
        names = ["ours", "webdataset", "keras_loop", "tfds"]
        section = writing.main_section(results, names, 5000, "5,000 photos.")
        assert section.rows == [
            ["ours", "2.50", "0.62", "2,000", "5.0", "100"],
            ["webdataset", "2.00", "0.50", "2,500", "4.0", "100"],
            ["keras_loop", "4.00", "1.00", "1,250", "8.0", "100"],
            ["tfds", "cannot run: exit 1: no | space"],
        ]
        assert verdicts(section) == {
            "ours / webdataset, wall time": (1.25, "MISSED"),
            "ours / keras_loop, wall time": (0.625, "MISSED"),
            "ours / beam_naive, wall time": (None, "not measured"),
            "ours_report / ours, wall time": (None, "not measured"),
            "ours, peak of all processes": (100, "met"),
        }

    def test_growth_of_the_peak(self):
        usual = rounds.Results([{"ours": run(2, 200)}])
        doubled = rounds.Results([{"ours": run(3, 211)}])
        section = writing.double_section(usual, doubled, ["ours", "floor"], "")
        assert section.rows == [["ours", "200", "211", "+5.5 %"], ["floor", "not run"]]
        assert verdicts(section) == {"ours, growth of the peak": (5.5, "MISSED")}

    def marginal_results(self) -> dict[int, rounds.Results]:
        return {
            500: results_of({"ours": 1.0, "floor": 0.1, "ray_data": 10, "litdata": 7, "cat": 0.1}),
            5000: results_of({"ours": 2.0, "floor": 1.0, "ray_data": 19, "litdata": 16}),
            50000: results_of({"ours": 11.0, "floor": 10.0}, litdata="took more than 900 s"),
        }

    def test_start_up_does_not_count_in_marginal_rates(self):
        ours = writing.marginal(self.marginal_results(), "ours")
        assert ours == writing.Marginal(5000, 50000, pytest.approx(2e-4), pytest.approx(4e-4))

    def test_who_did_not_do_all_sizes_is_taken_from_the_largest_two(self):
        ray = writing.marginal(self.marginal_results(), "ray_data")
        assert ray == writing.Marginal(500, 5000, pytest.approx(2e-3), pytest.approx(4e-3))
        assert writing.marginal(self.marginal_results(), "cat") is None

    def test_noise_is_no_rate(self):
        quicker = {500: results_of({"ours": 2.0}), 5000: results_of({"ours": 1.9})}
        assert writing.marginal(quicker, "ours") is None

    def test_marginal_section(self, monkeypatch):
        monkeypatch.setattr(writing.os, "cpu_count", lambda: 2)
        names = ["floor", "ours", "litdata", "ray_data", "cat", "tfds"]
        section = writing.marginal_section(self.marginal_results(), names, 160_000, "")
        assert section.rows == [
            ["floor", "50,000 − 5,000", "5,000", "0.400", "0.40", "1.00", "100"],
            ["ours", "50,000 − 5,000", "5,000", "0.400", "0.40", "1.00", "100"],
            [
                *("litdata", "5,000 − 500; 50,000: took more than 900 s", "500", "0.040", "0.04"),
                *("10.00", "100"),
            ],
            ["ray_data", "5,000 − 500", "500", "0.040", "0.04", "10.00", "100"],
            ["cat", "not run"],
            ["tfds", "not run"],
        ]
        assert verdicts(section) == {
            "ours / floor, time a photo": (1.0, "met"),
            "ours / litdata (the quickest peer), time a photo": (0.1, "met"),
        }
        assert [p.images for p in section.points if p.contender == "litdata"] == [500, 5000]

    def test_contenders_get_no_more_photos_than_they_can(self, monkeypatch, tmp_path):
        asked = {}

        def no_rounds(names, data, *_):
            asked[data.images] = names
            return results_of(keras_loop="no") if data.images == 500 else results_of()

        (tmp_path / "images").mkdir()
        monkeypatch.setattr(writing, "run_rounds", no_rounds)
        monkeypatch.setattr(
            writing, "draw", lambda _, images, *__: contenders.Data(tmp_path, images)
        )
        options = writing.Options(tmp_path, 5000, ["ours", "keras_loop", "beam_naive"])
        writing.run_marginal(options)
        assert asked == {
            500: ["ours", "keras_loop", "beam_naive"],
            5000: ["ours", "beam_naive"],  # who failed is not tried with more
            50000: ["ours"],
        }


class TestReading:
    def test_section(self):
        def reads(**walls: float) -> dict[str, reading.Read]:
            return {name: reading.Read(wall_s, 0.5) for name, wall_s in walls.items()}

        orders = {
            False: [reads(ours=1, tf_data=2), reads(ours=3, tf_data=9)],
            True: [reads(ours=4, tf_data=4)],
        }
        section = reading.reading_section(
            ["ours", "tf_data", "litdata"], orders, {"litdata": "exit 1: no"}, 1000, ""
        )
        assert section.rows == [
            ["ours", "500", "500", "250", "500", "2.50"],
            ["tf_data", "182", "500", "250", "500", "1.00"],
            ["litdata", "cannot run: exit 1: no"],
        ]
        assert verdicts(section) == {"ours / tf.data, images/s in order": (2.5, "met")}


class TestPrograms:
    def test_a_figure_has_its_target(self):
        line = "1000000 samples: 8.44 s of CPU, 8.4 us and 1,301 bytes a sample, peak 251 MB"
        section = programs._section(programs.SAMPLES, "")
        programs._add(section, programs.SAMPLES, "1,000,000", [line], None)
        assert section.rows == [["1,000,000", "8.4", "1,301", "8.44", "251"]]
        assert [target.verdict() for target in section.targets] == ["MISSED", "MISSED"]

    def test_a_program_that_cannot_run_says_why(self):
        section = programs._section(programs.PLAN, "")
        programs._add(section, programs.PLAN, "run 1", [], "exit 1: no such file")
        assert section.rows == [["run 1", "cannot run: exit 1: no such file"]]
        assert [target.verdict() for target in section.targets] == ["not measured"] * 2

    def test_store(self):
        lines = [
            "| | images/s | x one reader | our CPU, us | the server's | peak MB |",
            "|---|---|---|---|---|---|",
            "| one reader | 31 | 1 | 500 | 90 | |",
            "| the command, marginal | 1,000 | 31 | 950 | 90 | 300 |",
            "| the transfer, marginal | | | 350 | | |",
            "| the command, marginal | 2,400 | 33 | 850 | 90 | 300 |",
            "| the transfer, marginal | | | 250 | | |",
            "--bytes_in_flight 16MiB: peak 240 MB",
        ]
        section = programs.store_section(lines, None)
        assert verdicts(section) == {
            "a bucket: the command, marginal, images/s": (1700, "met"),
            "a bucket: the command, marginal, x one reader": (32, "met"),
            "a bucket: the transfer, marginal, us of our CPU an image": (300, "MISSED"),
        }
        assert section.remarks == ["\n".join(lines[:7]) + "\n\n" + lines[7]]

    def test_decoding(self):
        lines = [
            "| | ours, CPU ms an image | Pillow | ours / Pillow | at most 1.15 |",
            "| `--check decode` | 3.30 | 3.00 | 1.10 (1.08 to 1.12) | met |",
            "| | 1 core: few, more | 2 cores | images/s of 2,000 more: 1, 2 | 2 / 1, all |",
            "| `--check decode` | 5.0, 9.0 s | 3.0, 5.2 s | 500, 900: 1.80 x"
            " (at least 1.85: missed) | 1.73 x |",
        ]
        assert verdicts(programs.decoding_section(lines, None)) == {
            "`--check decode`, ours / Pillow, CPU": (1.1, "met"),
            "`--check decode`, 2 cores / 1, images/s": (1.8, "MISSED"),
        }


class TestFigures:
    def section(self) -> figures.Section:
        return figures.Section(
            "5 photos.",
            ["", "s"],
            [["ours", "1.5"], ["theirs", "cannot run: a|b"]],
            [figures.Target("ours", 1200.4, 1500, True, "images/s")],
            ["A remark."],
            [figures.Point("ours", 5, 1.5, 20)],
        )

    def test_markdown(self):
        assert self.section().markdown().split("\n") == [
            "5 photos.",
            "",
            "| | s |",
            "|---|---|",
            "| ours | 1.5 |",
            "| theirs | cannot run: a\\|b |",
            "",
            "| target | measured | wanted | |",
            "|---|---|---|---|",
            "| ours | 1,200 images/s | at least 1,500 images/s | MISSED |",
            "",
            "A remark.",
            "",
        ]

    def test_results_are_kept_beside_those_not_measured_anew(self, tmp_path):
        path = tmp_path / "new/results.json"
        figures.save(path, {"a": figures.Section("old"), "b": self.section()})
        figures.save(path, {"a": figures.Section("new")})
        assert figures.load(path) == {"a": figures.Section("new"), "b": self.section()}
        assert figures.load(tmp_path / "none.json") == {}


class TestChart:
    def points(self) -> list[figures.Point]:
        return [
            figures.Point(name, images, images / 1000 + start_s, 100 + start_s)
            for start_s, name in enumerate(["ours", "floor", "litdata_2", "cat"])
            for images in (500, 5000, 50000)
        ]

    def test_each_contender_has_a_line_and_a_name_in_both_diagrams(self):
        root = ElementTree.fromstring(chart.draw_chart(self.points()))
        lines = list(root.iter(f"{SVG}polyline"))
        assert len(lines) == 2 * 3  # `cat` is not drawn
        texts = [text.text for text in root.iter(f"{SVG}text")]
        for name in ("beam-tfrec", "LitData, 2 proc.", "5,000", "50,000"):
            assert texts.count(name) == 2

    def test_ten_times_the_photos_lie_as_far_apart_as_the_next(self):
        root = ElementTree.fromstring(chart.draw_chart(self.points()))
        places = next(root.iter(f"{SVG}polyline")).attrib["points"].split()
        xs = [float(place.split(",")[0]) for place in places]
        assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)

    def test_it_is_drawn_for_light_and_dark(self):
        assert "prefers-color-scheme: dark" in chart.draw_chart(self.points())

    def test_names_do_not_overlap(self):
        places = chart.spread([1, 2, 2, 3, 50, 51, 100], 15)
        assert all(b - a >= 15 for a, b in pairwise(places))

    def test_nothing_to_draw(self):
        with pytest.raises(ValueError, match="no point of ours, floor"):
            chart.draw_chart([figures.Point("cat", 1, 1, 1)])


class TestBench:
    @pytest.mark.parametrize(
        ("argv", "sections", "images", "rounds_"),
        [
            ([], list(bench.SECTIONS), 5000, None),
            (["--quick", "--section", "main", "few"], ["main", "few"], 300, 2),
            (["--marginal"], ["marginal"], 5000, None),
            (["--double", "--images", "10", "--rounds", "1"], ["double"], 10, 1),
        ],
    )
    def test_command_line(self, argv, sections, images, rounds_):
        args = bench.parse(argv)
        assert (args.section, args.options.images, args.options.rounds) == (
            sections,
            images,
            rounds_,
        )

    def test_contenders_are_chosen(self):
        assert bench.parse(["--only", "cat,ours,tfds", "--skip", "cat"]).options.names == [
            "ours",
            "tfds",
        ]

    def test_an_unknown_contender_is_refused(self, capsys):
        with pytest.raises(SystemExit):
            bench.parse(["--only", "wat"])
        assert "'wat' is none of cat, floor" in capsys.readouterr().err

    def test_a_section_that_fails_does_not_end_the_others(self, monkeypatch, tmp_path, capsys):
        def broken(_):
            raise OSError("disk full")

        monkeypatch.setattr(bench, "set_up", lambda names: None)
        monkeypatch.setitem(bench.SECTIONS, "cost", broken)
        monkeypatch.setitem(bench.SECTIONS, "store", lambda _: figures.Section("Measured."))
        results = tmp_path / "results.json"
        options = writing.Options(tmp_path, 5, ["ours"])
        bench.measure(["cost", "store"], options, results)
        found = json.loads(results.read_text())
        assert "OSError('disk full')" in found["cost"]["conditions"]
        assert found["store"]["conditions"].startswith("Measured. ")
        assert "## store\n\nMeasured. " in capsys.readouterr().out

    def test_the_readme_and_the_chart_are_what_was_measured(self):
        sections = figures.load(bench.RESULTS)
        readme = bench.README.read_text("utf-8")
        assert figures.fill_in(readme, sections) == readme
        assert all(f"<!-- bench: {name} -->" in readme for name in bench.SECTIONS)
        points = sections["marginal"].points
        assert not points or bench.CHART.read_text("utf-8") == chart.draw_chart(points)
