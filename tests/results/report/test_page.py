"""The page: what it says, that it stands alone, and that it is written whole."""

import json
import re
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.results.report import write_report
from support.pages import read
from support.reports import MakeRun


def test_one_run_reports_next_to_itself(make_run: MakeRun) -> None:
    folder = make_run("a", pictures=4)
    path = write_report([folder])
    assert path == folder / "report.html"
    page = read(path)
    figures = ["curves", "clients", "holdings", "prompts", "traffic", "measures"]
    assert page.sections == ["numbers", *figures, "run", "reading"]
    assert "79.50 % best 79.50 % in round 6" in page.text
    assert "76.00 % client 0; p10 76.00 %" in page.text
    assert "61.4 kB 30.7 kB down, 30.7 kB up" in page.text
    assert f"promptfed run {folder / 'recipe.toml'}" in page.text
    assert 'name = "pfedpt"' in page.text
    assert "unfinished" not in page.text


def test_several_runs_report_in_their_common_parent(make_run: MakeRun, tmp_path: Path) -> None:
    dirs = [make_run("x/a"), make_run("x/b", method="fedavg", level=0.7), make_run("y/c", method="pfedpg", level=0.9)]
    path = write_report(dirs)
    assert path == tmp_path / "report.html"
    page = read(path)
    assert "prompts" not in page.sections
    assert "pfedpt, fedavg, pfedpg on fashion-shops" in page.text
    assert "89.50 % best of all: pfedpg, seed 0" in page.text
    assert "<strong>89.50" in path.read_text(encoding="utf-8")


def test_the_page_says_which_accuracy_is_adapted(make_run: MakeRun) -> None:
    adapting, other = make_run("a", method="pfedpg", level=0.2, adapted=0.9), make_run("b", method="fedavg", level=0.7)
    page = read(write_report([adapting]))
    assert "89.50 % after adaptation; as received 19.50 %, at best 19.50 % in round 6" in page.text
    assert "in the last evaluation; for pfedpg, after adaptation." in page.text
    assert "The final accuracy of pfedpg, after adaptation, is only in the table." in page.text
    assert "In this report that applies to pfedpg." in page.text
    assert "Unless said otherwise" not in page.text
    both = read(write_report([other, adapting]))
    assert "89.50 % best of all: pfedpg, seed 0, after adaptation" in both.text
    assert "Accuracy of pfedpg: after adaptation." in both.text
    plain = read(write_report([other])).text
    assert "69.50 % best 69.50 % in round 6" in plain
    assert "after adaptation" not in plain
    assert "No method in this report adapts." in plain


def test_newcomers_stand_beside_founders(make_run: MakeRun) -> None:
    changes = {"clients": 6, "newcomers": 2, "join_rounds": 4}
    late, other = make_run("a", **changes), make_run("b", method="fedavg", level=0.7, **changes)
    page = read(write_report([late]))
    assert "Newcomers 69.00 % joined in round 7; founders 79.50 %" in page.text
    assert page.text.count("newcomers join") == 3, "in the drawings for wide and narrow pages, and under them"
    assert "newcomers join in round 7 and count from then on." in page.text
    assert "Newcomers and founders" in page.text
    both = read(write_report([late, other]))
    assert "Newcomers 69.00 % best of all: pfedpt; founders 79.50 %" in both.text
    assert "newcomers join in round 7 and count" in both.text
    some = read(write_report([late, make_run("c", method="local", clients=6)]))
    assert "newcomers join in round 7 of pfedpt and count from then on." in some.text
    plain = read(write_report([make_run("d")])).text
    assert "newcomers join" not in plain
    assert "Newcomers and founders" not in plain


def test_a_method_has_one_colour_everywhere(make_run: MakeRun) -> None:
    text = write_report([make_run("a"), make_run("b", method="fedavg", level=0.7)]).read_text(encoding="utf-8")
    for kind in ("line", "bar", "load down", "load up"):
        found = set(re.findall(rf'class="{kind} +(s\d)"', text))
        assert found == {"s0", "s1"}, kind
    assert re.search(r'class="bar s1"[^>]*><title>fedavg', text)
    assert re.search(r'class="dot s1"><circle[^>]*/><circle[^>]*/><title>fedavg', text)


def test_the_same_folder_twice_is_one_run(make_run: MakeRun) -> None:
    folder = make_run("a")
    assert write_report([folder, folder / "." / ""]) == folder / "report.html"


def test_the_page_is_the_same_each_time(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a", pictures=2)
    first, second = (write_report([folder], tmp_path / "out" / name) for name in ("1.html", "2.html"))
    assert first.read_bytes() == second.read_bytes()


def test_the_page_stands_alone(make_run: MakeRun) -> None:
    text = write_report([make_run("a", pictures=2)]).read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in text
    assert "<script" not in text
    assert "@import" not in text
    assert text.count('src="data:image/png;base64,iVBOR') == 2


def test_what_others_wrote_is_escaped(make_run: MakeRun) -> None:
    folder = make_run("a")
    for name in ("recipe.toml", "summary.json", "partition.json"):
        old = (folder / name).read_text(encoding="utf-8")
        new = old.replace("pfedpt", "<script>x</script>").replace("Trouser", "<b>&")
        (folder / name).write_text(new, encoding="utf-8")
    path = write_report([folder])
    assert "<script" not in path.read_text(encoding="utf-8")
    assert "<b>&<" not in path.read_text(encoding="utf-8")
    assert "<script>x</script> on fashion-shops" in read(path).text


def test_an_unfinished_run_says_so(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", done=4)]))
    assert "unfinished, 4 of 6 rounds" in page.text
    assert "4 rounds" in page.text


def test_a_run_without_any_evaluation_still_reports(make_run: MakeRun) -> None:
    folder = make_run("a", done=3)
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "rounds.jsonl").write_text(lines[2] + "\n", encoding="utf-8")
    (folder / "partition.json").unlink()
    page = read(write_report([folder]))
    assert page.sections == ["numbers", "traffic", "measures", "run", "reading"]
    assert "Newcomers and founders" not in page.text


def test_prompts_are_captioned_by_client_and_classes(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", pictures=2)]))
    assert "client 1 Trouser, Pullover, Dress" in page.text
    many = read(write_report([make_run("b", pictures=26, clients=26)]))
    assert "2 more are in the run folder" in many.text


def test_settings_that_differ_have_figures_of_their_own(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a"), make_run("b", dataset="office", clients=6)]))
    assert "office, dirichlet, cnn, 6 clients. Test accuracy" in page.text
    assert "best of all" not in page.text


def test_methods_are_weighed_by_what_they_send(make_run: MakeRun) -> None:
    dirs = [make_run(f"a{seed}", seed=seed, level=0.8 + 0.02 * seed, clients=5) for seed in range(3)]
    dirs += [make_run("b", method="local", level=0.6, floats=0, clients=5)]
    page = read(write_report(dirs))
    assert page.sections[:3] == ["numbers", "exchange", "curves"]
    assert "pfedpt: 82.00 ± 2.00%, 15,360 numbers exchanged per client and round" in page.text
    assert "local: 60.00%, no number exchanged per client and round" in page.text
    assert "exchange" not in read(write_report(dirs[:3])).sections, "one method has nothing to be weighed against"


def test_what_a_method_shows_of_its_clients_is_drawn(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", clients=4, domains=2)]))
    assert page.sections[4:6] == ["exhibits", "traffic"]
    for title in ("Prompt similarity", "Label distance", "Map of the descriptors", "Attention over the basis prompts"):
        assert title in page.text
    assert "clients 0 and 3: distance 1.000, different domains" in page.text
    assert "clients 2 and 0: distance 0.900, the same domain" in page.text
    assert re.search(r"client 3, basis prompt 9: 0\.\d{4}, \d\.\d\d times even", page.text)
    assert "on their first two principal components" in page.text
    assert "colours: the client's domain." in page.text


def test_clients_of_one_domain_are_coloured_by_class(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", clients=4, domains=1)]))
    assert "colours: the client's most frequent class." in page.text
    assert "How the clients differ T-shirt/top Trouser Pullover Dress Prompt similarity" in page.text
    assert "different domains" not in page.text


def test_only_the_first_clients_are_drawn_and_it_says_so(make_run: MakeRun) -> None:
    page = read(write_report([make_run("a", clients=70, domains=2), make_run("b", clients=70, method="fedavg")]))
    assert "How the clients differ pfedpt studio street Prompt similarity" in page.text
    assert "The first 64 of 70 clients, in the order of their groups" in page.text
    assert "A number names its client" not in page.text


def test_parts_that_are_missing_are_left_out(make_run: MakeRun) -> None:
    folder = make_run("a", clients=4, domains=2)
    found = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    for key in ("prompts", "descriptors"):
        del found[key]
    (folder / "figures.json").write_text(json.dumps(found), encoding="utf-8")
    page = read(write_report([folder]))
    assert "Attention over the basis prompts" in page.text
    assert "Prompt similarity" not in page.text
    assert "Map of the descriptors" not in page.text


FOREIGN = {
    "torn": ('{"clients": 4, "doma', "is not valid JSON"),
    "a list": ("[1, 2]", "must hold one JSON object"),
    "empty": ("{}", "it has no 'domains'"),
    "text": ('{"domains": "abc", "classes": [], "domain_names": []}', "does not describe figures"),
    "number": ('{"domains": 3, "classes": [], "domain_names": []}', "does not describe figures"),
    "uneven": ('{"domains": [0, 1], "classes": [0], "domain_names": []}', "it has domains for 2 clients"),
    "short": (
        '{"domains": [0, 1], "classes": [0, 1], "domain_names": [], "attention": [[1]]}',
        "attention does not fit 2 clients",
    ),
    "not finite": (
        '{"domains": [0], "classes": [0], "domain_names": [], "attention": [[NaN]]}',
        "attention has a number that is not finite",
    ),
    "alone": (
        '{"domains": [0], "classes": [0], "domain_names": [], "prompts": {"cosine": [[1]]}}',
        "of a single client cannot be compared",
    ),
    "no table": (
        '{"domains": [0, 1], "classes": [0, 1], "domain_names": [], "prompts": 7}',
        "does not describe figures",
    ),
    "huge": (
        '{"domains": [0], "classes": [0], "domain_names": [], "attention": [[1' + "0" * 400 + "]]}",
        "does not describe figures",
    ),
    "not text": (None, "cannot be read as text"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_torn_or_foreign_figures_are_a_sentence(make_run: MakeRun, kind: str) -> None:
    folder = make_run("a")
    content, sentence = FOREIGN[kind]
    (folder / "figures.json").write_bytes(b"\xff\xfe" if content is None else content.encode())
    page = read(write_report([folder]))
    assert "What the method shows of its clients cannot be drawn." in page.text
    assert sentence in page.text
    assert page.sections[-2:] == ["run", "reading"]


def test_writing_is_whole_and_leaves_nothing_behind(make_run: MakeRun) -> None:
    folder = make_run("a")
    before = {path.name for path in folder.iterdir()}
    (folder / "report.html").write_text("old", encoding="utf-8")
    write_report([folder])
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_mistakes_are_sentences(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a")
    with pytest.raises(PromptFedError, match="at least one run folder"):
        write_report([])
    with pytest.raises(PromptFedError, match="which is a folder; give a file"):
        write_report([folder], tmp_path)
    with pytest.raises(PromptFedError, match="cannot be written to"):
        write_report([folder], folder / "recipe.toml" / "report.html")


def test_figures_someone_asked_for_are_part_of_the_page(make_run: MakeRun) -> None:
    folder = make_run("a", pictures=1)
    assert "figures" not in read(write_report([folder])).sections
    drawn = folder / "figures"
    drawn.mkdir()
    told = {"kind": "prior", "title": "Expected & true", "caption": "What <one> sees.", "numbers": {}}
    (drawn / "prior.json").write_text(json.dumps(told), encoding="utf-8")
    assert "figures" not in read(write_report([folder])).sections, "a caption without its picture"
    (drawn / "prior.png").write_bytes((folder / "pictures" / "frame-client-000.png").read_bytes())
    page = read(write_report([folder]))
    assert page.sections[-3:] == ["figures", "run", "reading"]
    assert "Expected & true. What <one> sees." in page.text
    assert "promptfed figure" not in page.text, "the models are gone, so there is nothing more to draw"
    (drawn / "prior.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PromptFedError, match="does not describe a figure"):
        write_report([folder])


def test_a_run_with_its_models_says_how_to_look_closer(make_run: MakeRun) -> None:
    folder, unfinished = make_run("a"), make_run("b", method="fedavg", done=3)
    for one in (folder, unfinished):
        (one / "checkpoint").mkdir()
        (one / "checkpoint" / "state.json").write_text("{}", encoding="utf-8")
    assert f"promptfed figure prior {folder}" in read(write_report([folder])).text
    assert f"promptfed figure prior {folder}" in read(write_report([unfinished, folder])).text
    assert "promptfed figure" not in read(write_report([unfinished])).text
