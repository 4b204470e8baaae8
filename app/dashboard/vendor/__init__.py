"""Third-party files, unmodified, that our server delivers to browsers.

``plotly-basic.min.js``: plotly.js 4.1.1, the bundle of scatter, bar and pie (npm package ``plotly.js-basic-dist-min``),
under the licence next to it. The complete plotly.js of the plotly package is four times as long. Browsers take five
times as long to load it, which was half of the delay of the first chart. To update, replace both files with those of a
newer release of that package.
"""
