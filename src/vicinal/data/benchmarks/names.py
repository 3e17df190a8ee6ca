"""The names of the benchmarks, and what each is. The command reads them, so this imports nothing."""

BENCHMARKS = {
    "digits": "handwritten digits of scikit-learn, 8 x 8 pixels",
    "glyphs": "characters drawn from the fonts of matplotlib",
    "omniglot": "handwritten characters, Omniglot's small background sets",
    "cub": "birds, CUB-200-2011",
    "cars": "cars, Cars196",
    "sop": "products, Stanford Online Products",
    "in_shop": "clothes, In-Shop of DeepFashion",
    "in_shop_highres": "the same with the images of high resolution",
    "inaturalist_2018": "plants and animals, iNaturalist 2018",
    "mini_inaturalist_2021": "plants and animals, mini-iNaturalist 2021",
    "vehicle_id": "vehicles, PKU VehicleID with the large test set",
    "vehicle_id_medium": "the same with the medium test set",
    "vehicle_id_small": "the same with the small test set",
    "roxford": "landmarks, revisited Oxford",
    "rparis": "landmarks, revisited Paris",
}
"""What each benchmark is, by the name that recipes and the command use: a function of this package."""
