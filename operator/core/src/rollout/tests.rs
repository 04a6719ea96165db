mod canaries;
mod gates;
mod model;
mod properties;
mod steps;
