// One figure after the other, so that the page can be read while they are drawn.
(function () {
  "use strict";
  var sources = Array.prototype.slice.call(document.querySelectorAll("script[data-plot]"));
  var config = { displayModeBar: false, displaylogo: false, responsive: true, showTips: false, scrollZoom: false };

  function next() {
    var source = sources.shift();
    if (!source) {
      document.documentElement.setAttribute("data-drawn", "true");
      return;
    }
    var figure = JSON.parse(source.textContent);
    var place = document.getElementById(source.getAttribute("data-plot"));
    Plotly.newPlot(place, figure.data, figure.layout, config).then(function () {
      setTimeout(next, 0);
    });
  }

  next();
})();
