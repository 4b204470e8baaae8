"""Files of others, unmodified, that the browser gets from us.

``plotly-basic.min.js``: plotly.js 4.1.1, the bundle of scatter, bar and pie (npm package ``plotly.js-basic-dist-min``),
under the licence beside it. The complete plotly.js of the plotly package is four times as long, and browsers take five
times as long to load it, which was half of the wait for the first chart. To renew it, replace both files by those of a
newer release of that package.
"""
