import pytest

from npuserve.text.reasoning import ReasoningSplitter
from npuserve.text.tags import TagFinder, Trimmer


def split(text: str, size: int = 1, *, opened: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(opened=opened)
    parts = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)]
    parts.append(splitter.finish())
    return "".join(thought for thought, _ in parts), "".join(content for _, content in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "opened", "thought", "content"),
    [
        ("<think>\na b\n</think>\n\nc ", False, "a b", "c "),
        ("\n <think>a</think>c", False, "a", "c"),
        ("a b\n</think>c", True, "a b", "c"),
        ("<think>a</thi", False, "a</thi", ""),
        ("<think>a \n", False, "a", ""),
        ("<think></think>c", False, "", "c"),
        ("<thi", False, "", "<thi"),
        (" \n<thinker> x", False, "", " \n<thinker> x"),
        ("so <think>a</think>", False, "", "so <think>a</think>"),
        ("<think>a</think>b</think>c<think>", False, "a", "b</think>c<think>"),
        ("<think>a < b </think>", False, "a < b", ""),
        ("  ", False, "", "  "),
        ("", True, "", ""),
    ],
)
def test_thoughts_and_content(text: str, opened: bool, thought: str, content: str, size: int) -> None:
    assert split(text, size, opened=opened) == (thought, content)


def test_closing_place_is_where_the_tag_ends() -> None:
    splitter = ReasoningSplitter(opened=False)
    for character in "<think>ab</think>c":
        splitter.push(character)
    assert splitter.closed_at == len("<think>ab</think>")


def test_no_more_than_a_tag_is_held() -> None:
    finder = TagFinder(["<abc>", "<xy>"])
    assert finder.push("12<a") == ("12", None, "")
    assert finder.push("d<x") == ("<ad", None, "")
    assert finder.push("y>rest<abc>") == ("", "<xy>", "rest<abc>")
    assert finder.finish() == ""


def test_white_space_is_kept_back_until_something_follows() -> None:
    trimmer = Trimmer(leading=True)
    assert [trimmer.push(text) for text in (" ", "\na", " ", "\n", "b ")] == ["", "a", "", "", " \nb"]
    assert trimmer.finish() == " "
