"""What goes along with a request: which documents, their snippets, and the names that the daemon knows them by."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence

from codespec.api.types import Snippet
from codespec_lsp.documents import Document, Documents
from codespec_lsp.exclusions import Exclusions
from codespec_lsp.imports import ImportedFiles
from codespec_lsp.lookup_files import Wanted
from codespec_lsp.prompt import SnippetCache, with_newlines
from codespec_lsp.settings import EditorSettings
from codespec_lsp.syntax import DocumentSyntax


class RequestContext:
    """The context of one client's requests. `settings` returns its settings."""

    def __init__(
        self,
        documents: Documents,
        exclusions: Exclusions,
        syntax: Mapping[str, DocumentSyntax],
        settings: Callable[[], EditorSettings],
        clock: Callable[[], float],
    ) -> None:
        self._documents, self._exclusions, self._syntax, self._settings = documents, exclusions, syntax, settings
        self._snippets = SnippetCache()
        self.imported = ImportedFiles(exclusions, clock)
        self._name = secrets.token_hex(4)

    def close(self, uri: str) -> None:
        """Drop the data of a closed document."""
        self._snippets.forget(uri)
        self.imported.close(uri)

    async def look_at_imports(self, document: Document) -> None:
        """Look for the files that a document imports, if the settings allow it."""
        if self._settings().snippets and self._documents.get(document.uri) is document:
            await self.imported.look(document)

    def find_snippets(self, document: Document, wanted: str) -> Sequence[Snippet]:
        """Return snippets of other files, if the settings allow them. `wanted` is a type whose definition helps."""
        if not self._settings().snippets:
            return ()
        imported = self.imported.known(document, {each.path for each in self._documents})
        others = [each for each in self.near(document) if each is document or each.file != document.file]
        found = self._snippets.find(document, others, self.may_send, self._syntax, imported, wanted)
        return [Snippet(self.shown(each.path), each.text) for each in found]

    def lookup_files(self, document: Document) -> Wanted:
        """Return the open files that drafts in a document may copy from."""
        others = [each for each in self.near(document) if each is not document and self.may_send(each)]
        opened = tuple((each.path, with_newlines(each.buffer.text)) for each in reversed(others))
        return Wanted(self.document_name(document), opened, self._exclusions.rules)

    def document_name(self, document: Document) -> str:
        """Return the daemon's name for a document. The same file in two editors has two names."""
        return f"{self._name}-{hashlib.blake2b(document.uri.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"

    def shown(self, path: str) -> str:
        """Return a path as a model sees it."""
        return self._exclusions.rules.shown(path)

    def may_send(self, document: Document) -> bool:
        """Return whether a document's text may go along with a request in another one."""
        return not document.lost and self._exclusions.may_go_along(document.file)

    def concerned(self, document: Document) -> list[str]:
        """Return the files of the documents whose text would be sent with a request in this document."""
        return [each.file for each in self.near(document)]

    def near(self, document: Document) -> list[Document]:
        """Return the documents whose text may be sent with a request in this document."""
        return self._documents.near(document) if self._settings().snippets else [document]
