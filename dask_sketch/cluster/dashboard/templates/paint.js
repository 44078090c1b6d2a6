const scheme = window.matchMedia("(prefers-color-scheme: dark)");
const paint = () => {
  const colours = schemes[scheme.matches ? "dark" : "light"];
  for (const figure of figures) {
    figure.outline_line_color = colours.line;
    for (const axis of [...figure.below, ...figure.left]) {
      axis.major_label_text_color = colours.soft;
      axis.axis_label_text_color = colours.soft;
      axis.axis_line_color = axis.major_tick_line_color = colours.soft;
    }
    for (const grid of figure.center) {
      if ("grid_line_color" in grid) grid.grid_line_color = colours.line;
    }
  }
};
scheme.addEventListener("change", paint);
paint();
