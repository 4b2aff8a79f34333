// Tables and equations that are wider than the screen can be reached, and then moved, by keyboard.
function reach() {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, math[display=block]")) {
    if (part.scrollWidth > part.clientWidth) part.setAttribute("tabindex", "0");
    else part.removeAttribute("tabindex");
  }
}
addEventListener("load", reach);
addEventListener("resize", reach);
