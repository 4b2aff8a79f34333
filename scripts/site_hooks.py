"""What mkdocs calls while it builds the site: pages made from the code, the menu, equations as MathML."""

import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedwright.server_runtime.methods.registry import METHODS
from site_pages.commands import command_page
from site_pages.documents import document_pages
from site_pages.errors import errors_page, exit_codes_page
from site_pages.messages import messages_page
from site_pages.methods import method_pages, settings_page
from site_pages.metrics import metrics_page
from site_pages.public_names import public_names_page
from site_pages.sections import config_page, edge_page

# Drawings that lie beside the results they show, outside docs/.
RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
DRAWING = re.compile(r"\(\.\./benchmarks/results/(?P<name>[\w.-]+\.png)\)")
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def pages() -> dict[str, str]:
    """Every page that is made from the code, by its path in docs/."""
    return {
        "reference/commands.md": command_page(),
        "reference/config.md": config_page(),
        "reference/edge-config.md": edge_page(),
        "reference/method-settings.md": settings_page(),
        "reference/python.md": public_names_page(),
        "reference/messages.md": messages_page(),
        "reference/errors.md": errors_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "reference/metrics.md": metrics_page(),
        **method_pages(),
        **document_pages(),
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts every method into the menu."""
    for part in config.nav or []:
        if "Methods" in part:
            part["Methods"] = [*part["Methods"], *({name: f"methods/{name}.md"} for name in sorted(METHODS))]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made; one by hand gives way to the page that goes on from it."""
    for path, text in pages().items():
        by_hand = files.get_file_from_path(path)
        if by_hand is not None:
            files.remove(by_hand)
        files.append(File.generated(config, path, content=text))
    for drawing in RESULTS.glob("*.png"):
        files.append(File.generated(config, f"images/{drawing.name}", abs_src_path=str(drawing)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Such a drawing is an image of the site."""
    return DRAWING.sub(r"(images/\g<name>)", markdown)


def named_search(output: str) -> str:
    """A page whose search dialogue, which the theme leaves without one, has a name."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Mends what the theme makes of a page."""
    return named_search(output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for what is not written as a page, such as that of addresses that lead nowhere."""
    return named_search(output_content)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns TeX into MathML, which browsers draw without any script."""
    content = INLINE.sub(lambda found: convert(html.unescape(found[1])), content)
    return BLOCK.sub(lambda found: convert(html.unescape(found[1]), display="block"), content)
