"""The files of a multipart form, read in memory; a form that ends too early is no form."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from promptfed.serving.refusals import Refusal

UNREADABLE = "The form cannot be read as multipart/form-data."


def read_form(kind: str, content: bytes, most: int) -> list[bytes]:
    """Return the files of a form whose content type is `kind`; fields that are no files are left out."""
    boundary = parse_options_header(kind)[1].get(b"boundary", b"")
    if not boundary:
        raise Refusal(400, UNREADABLE)
    found = _Files(most)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": found.begin,
                "on_header_field": found.name,
                "on_header_value": found.value,
                "on_header_end": found.header,
                "on_part_data": found.data,
                "on_end": found.end,
            },
        )
        parser.write(content)
        parser.finalize()
    except FormParserError as error:
        raise Refusal(400, UNREADABLE) from error
    if not found.whole:
        raise Refusal(400, "The form was cut off.")
    if not found.files:
        raise Refusal(400, "The form has no image: send it as a file, as curl -F image=@photo.jpg does.")
    return [bytes(file) for file in found.files]


class _Files:
    """Collects the files while a form is parsed."""

    def __init__(self, most: int) -> None:
        self.most, self.files, self.whole = most, list[bytearray](), False
        self.parts, self.inside = 0, False
        self.key, self.text = b"", b""

    def begin(self) -> None:
        self.parts, self.inside = self.parts + 1, False
        if self.parts > 2 * self.most:
            raise Refusal(413, f"A request has at most {self.most} images.")

    def name(self, data: bytes, start: int, end: int) -> None:
        self.key += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self.text += data[start:end]

    def header(self) -> None:
        if self.key.lower() == b"content-disposition" and b"filename" in parse_options_header(self.text)[1]:
            if len(self.files) == self.most:
                raise Refusal(413, f"A request has at most {self.most} images.")
            self.files.append(bytearray())
            self.inside = True
        self.key, self.text = b"", b""

    def data(self, data: bytes, start: int, end: int) -> None:
        if self.inside:
            self.files[-1] += data[start:end]

    def end(self) -> None:
        self.whole = True
